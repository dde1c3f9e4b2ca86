"""GAT: logit = leaky_relu(el + er + edge_logit), one score a head on either side."""

# mypy: disable-error-code=no-untyped-def

from gnn_backend.runtime.cpu_vector import where
from gnn_backend.runtime.numba_templates.common import inline

KEY, QUERY, PARAM, VALUE = "el", "er", None, "x_src"
EDGE_ROWS, EDGE_TERM = None, "edge_logit"
KEY_SCORE, QUERY_SCORE = None, None
VALUE_IS_KEY = False
KEY_IS_SCALAR = True

term = key_slope = query_slope = param_slope = None  # scores are added, no feature takes part
term_slope = None


@inline
def logit(total, bias, scalars):
    z = total + bias
    return where(z > 0.0, z, z * scalars[0])


@inline
def logit_slope(total, bias, scalars):
    return where(total + bias > 0.0, 1.0, scalars[0])


@inline
def finish_key(total, param, scalars):
    return total


finish_query = finish_key
