"""SuperGAT: logit = leaky_relu(scale * p + (el + er) * sigmoid(p)), p = <x_src, x_dst>."""

# mypy: disable-error-code=no-untyped-def

from gnn_backend.runtime.cpu_vector import exponential, where, zeros
from gnn_backend.runtime.numba_templates.common import REAL, inline

KEY, QUERY, PARAM, VALUE = "x_src", "x_dst", None, "x_src"
EDGE_ROWS, EDGE_TERM = None, None
KEY_SCORE, QUERY_SCORE = "el", "er"
VALUE_IS_KEY = True
KEY_IS_SCALAR = False


@inline
def term(key, query, param, scalars):
    return key * query


@inline
def sigmoid(total):
    return 1.0 / (exponential(0.0 - total) + 1.0)


@inline
def score(total, gate, ends, scalars):
    """What the leaky-relu is taken of; an infinite product that is not scaled is not NaN."""
    scaled = total * scalars[1] if scalars[1] != 0.0 else zeros(REAL, 1)
    return scaled + ends * gate


@inline
def logit(total, ends, scalars):
    z = score(total, sigmoid(total), ends, scalars)
    return where(z > 0.0, z, z * scalars[0])


@inline
def logit_slope(total, ends, scalars):
    gate = sigmoid(total)
    outer = where(score(total, gate, ends, scalars) > 0.0, 1.0, scalars[0])
    return (ends * gate * (1.0 - gate) + scalars[1]) * outer


@inline
def term_slope(total, ends, scalars):
    gate = sigmoid(total)
    return gate * where(score(total, gate, ends, scalars) > 0.0, 1.0, scalars[0])


@inline
def key_slope(key, query, param, scalars):
    return query


@inline
def query_slope(key, query, param, scalars):
    return key


@inline
def param_slope(key, query, param, scalars):
    return param


@inline
def finish_key(total, param, scalars):
    return total


finish_query = finish_key
