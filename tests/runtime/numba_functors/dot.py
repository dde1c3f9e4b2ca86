"""Dot-product attention: logit = scale * <query, key>, with a value of its own."""

from gnn_backend.runtime.numba_templates.common import inline

KEY, QUERY, PARAM, VALUE = "k_src", "q_dst", None, "v_src"
VALUE_IS_KEY = False


@inline
def term(key, query, param, scalars):
    return key * query * scalars[0]


@inline
def key_slope(key, query, param, scalars):
    return query


@inline
def finish_key(total, param, scalars):
    return total * scalars[0]


@inline
def query_slope(key, query, param, scalars):
    return key


finish_query = finish_key


@inline
def param_slope(key, query, param, scalars):
    return param
