"""GAT: logit = leaky_relu(el + er), one score a head, and a value of its own."""

from gnn_backend.runtime.cpu_vector import where
from gnn_backend.runtime.numba_templates.common import inline

KEY, QUERY, PARAM, VALUE = "el", "er", None, "x_src"
VALUE_IS_KEY = False


@inline
def term(key, query, param, scalars):
    z = key + query
    return where(z > 0.0, z, z * scalars[0])


@inline
def key_slope(key, query, param, scalars):
    return where(key + query > 0.0, 1.0, scalars[0])


@inline
def finish_key(total, param, scalars):
    return total


query_slope = key_slope
finish_query = finish_key


@inline
def param_slope(key, query, param, scalars):
    return param
