"""A dot product with a factor of the source's own: logit = (el + er) * <x_src, q_dst>."""

# mypy: disable-error-code=no-untyped-def

from gnn_backend.runtime.numba_templates.common import inline

KEY, QUERY, PARAM, VALUE = "x_src", "q_dst", None, "x_src"
EDGE_ROWS, EDGE_TERM = None, None
KEY_SCORE, QUERY_SCORE = "el", "er"
VALUE_IS_KEY = True
KEY_IS_SCALAR = False


@inline
def term(key, query, param, scalars):
    return key * query


@inline
def logit(total, ends, scalars):
    return total * ends


@inline
def logit_slope(total, ends, scalars):
    return ends


@inline
def term_slope(total, ends, scalars):
    return total


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
