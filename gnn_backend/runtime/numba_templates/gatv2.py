"""GATv2: logit = sum_d att[d] * leaky_relu(x_src[d] + x_dst[d] + edge[d]), value = x_src."""

# mypy: disable-error-code=no-untyped-def

from gnn_backend.runtime.cpu_vector import where
from gnn_backend.runtime.numba_templates.common import inline

# Which operand plays which role. The value is the key itself, so that each row is read once.
KEY, QUERY, PARAM, VALUE = "x_src", "x_dst", "att", "x_src"
EDGE_ROWS, EDGE_TERM = "edge", None
KEY_SCORE, QUERY_SCORE = None, None
VALUE_IS_KEY = True
KEY_IS_SCALAR = False

logit_slope = term_slope = None


@inline
def term(key, query, param, scalars):
    """What one feature adds to the logit."""
    z = key + query
    return param * where(z > 0.0, z, z * scalars[0])


@inline
def logit(total, bias, scalars):
    """The logit itself."""
    return total


@inline
def key_slope(key, query, param, scalars):
    """Derivative of the term towards the key, up to what ``finish_key`` multiplies."""
    return where(key + query > 0.0, 1.0, scalars[0])


@inline
def finish_key(total, param, scalars):
    """Key gradient from the sum of ``weight * key_slope`` over a row."""
    return total * param


query_slope = key_slope
finish_query = finish_key


@inline
def param_slope(key, query, param, scalars):
    """Derivative of the term towards the parameter."""
    z = key + query
    return where(z > 0.0, z, z * scalars[0])
