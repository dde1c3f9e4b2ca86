"""Dot-product attention: logit = scale * <query, key> + edge_bias, with a value of its own."""

# mypy: disable-error-code=no-untyped-def

from gnn_backend.runtime.numba_templates.common import inline

KEY, QUERY, PARAM, VALUE = "k_src", "q_dst", None, "v_src"
EDGE_ROWS, EDGE_TERM = None, "edge_bias"
KEY_SCORE, QUERY_SCORE = None, None
VALUE_IS_KEY = False
KEY_IS_SCALAR = False

logit_slope = term_slope = None  # the scale is put back once a row


@inline
def term(key, query, param, scalars):
    return key * query


@inline
def logit(total, bias, scalars):
    return total * scalars[0] + bias


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
    return total * scalars[0]


finish_query = finish_key
