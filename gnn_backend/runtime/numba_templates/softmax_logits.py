"""Logits of a few neighbours at a time, kept in a small buffer; their exponentials.

``table`` holds the operand that is gathered, one row a neighbour, ``row`` the operand of the row
itself. By destination the key is gathered (``swap`` is None), by source the query is.
"""

# mypy: disable-error-code=no-untyped-def

from collections import namedtuple

import numpy as np

from gnn_backend.runtime.cpu_memory import get, load, optional, put, shift, store
from gnn_backend.runtime.cpu_vector import (
    active,
    exponential,
    first_lanes,
    greatest,
    halves,
    lanes,
    total,
    totals,
    where,
    zeros,
)
from gnn_backend.runtime.numba_templates.common import (
    REAL,
    clear,
    fetch_ahead,
    for_tiles,
    inline,
    neighbor,
)
from gnn_backend.runtime.numba_templates.gatv2 import (
    KEY_IS_SCALAR,
    logit,
    logit_slope,
    term,
    term_slope,
)
from gnn_backend.runtime.numba_templates.softmax_edges import (
    EDGES,
    edge_dot_part,
    edge_position,
    edge_scalars,
    fetch_edge_ahead,
)

# What one head of a row reads, as pointers to its first feature: the gathered table, the row,
# the parameter, an edge tensor; and which side is gathered. ``terms``, ``own_term``: scores [H] of
# the gathered side and of the row, or None.
Side = namedtuple("Side", "table row param edge scalars swap terms own_term")

ENDS_AT = 6 * EDGES  # in the buffer of a block: the scores of both ends, before backward

# Features of the edges, and the row they are multiplied with: of the row itself, or ``swapped``.
EdgeSide = namedtuple("EdgeSide", "features row swapped")


@inline
def add_to(buffer, at, vector):
    store(buffer, at, load(buffer, at, vector, None) + vector, None)


# ------------------------------------------------------------------ sums over features


@inline
def totals_tile(at, like, mask, sums, chunk, row, param, part, part_args):
    """sums[k] += the sum over this tile of what ``part`` gives for neighbour k."""
    fixed, a = load(row, at, like, mask), load(param, at, like, mask)
    whole = chunk.n - chunk.n % 4
    for k in range(0, whole, 4):
        four = totals(
            part(at, k, like, mask, chunk, fixed, a, *part_args),
            part(at, k + 1, like, mask, chunk, fixed, a, *part_args),
            part(at, k + 2, like, mask, chunk, fixed, a, *part_args),
            part(at, k + 3, like, mask, chunk, fixed, a, *part_args),
        )
        add_to(sums, k, four)
    for k in range(whole, chunk.n):
        one = part(at, k, like, mask, chunk, fixed, a, *part_args)
        put(sums, k, get(sums, k) + total(one))


@inline
def products_tile(at, like, mask, logits, dots, chunk, side, dot_side, logit_args, dot_args):
    """``totals_tile`` of logits and of dot products, in one pass over the neighbours."""
    fixed, a = load(side.row, at, like, mask), load(side.param, at, like, mask)
    dot_fixed = load(dot_side.row, at, like, mask)
    for k in range(0, chunk.n - 1, 2):
        sums = totals(
            logit_part(at, k, like, mask, chunk, fixed, a, *logit_args),
            logit_part(at, k + 1, like, mask, chunk, fixed, a, *logit_args),
            dot_part(at, k, like, mask, chunk, dot_fixed, a, *dot_args),
            dot_part(at, k + 1, like, mask, chunk, dot_fixed, a, *dot_args),
        )
        low, high = halves(sums)
        add_to(logits, k, low)
        add_to(dots, k, high)
    if chunk.n % 2 == 1:
        k = chunk.n - 1
        one = logit_part(at, k, like, mask, chunk, fixed, a, *logit_args)
        dot = dot_part(at, k, like, mask, chunk, dot_fixed, a, *dot_args)
        put(logits, k, get(logits, k) + total(one))
        put(dots, k, get(dots, k) + total(dot))


@inline
def logit_part(at, k, like, mask, chunk, fixed, a, side, stride):
    """A tile of the terms of one neighbour's logit."""
    fetch_ahead(side.table, at, like, chunk.nbrs, k, chunk.reach, stride)
    fetch_edge_ahead(side.edge, at, like, chunk, k, stride)
    gathered = load(side.table, neighbor(chunk.nbrs, k, stride) + at, like, mask)
    gathered += load(side.edge, edge_position(side.edge, chunk, k, stride) + at, like, mask)
    if side.swap is None:
        return active(term(gathered, fixed, a, side.scalars), mask)
    return active(term(fixed, gathered, a, side.scalars), mask)


@inline
def dot_part(at, k, like, mask, chunk, fixed, a, table, stride):
    """A tile of <table[neighbour k], row>."""
    fetch_ahead(table, at, like, chunk.nbrs, k, chunk.reach, stride)
    return load(table, neighbor(chunk.nbrs, k, stride) + at, like, mask) * fixed


# ------------------------------------------------------------------ logits of a chunk


@inline
def sum_scores(a, logits, chunk, side):
    """logits[k] = the sum of the two scores of edge k."""
    own = get(side.row, 0)
    for k in range(chunk.n):
        put(logits, k, get(side.table, neighbor(chunk.nbrs, k, a.heads)) + own)


@inline
def add_edge_dots(a, sums, chunk, edge_side):
    """sums[k] += <features of edge k, row of its destination>."""
    if edge_side.features is None:
        return
    width = a.feature_width
    args = (edge_side.features, a.feature_stride, edge_side.swapped, a.heads * width)
    tile_args = (sums, chunk, edge_side.row, None, edge_dot_part, args)
    for_tiles(totals_tile, width, tile_args)


@inline
def end_scores(target, chunk, terms, own_term, heads):
    """target[k] = the sum of both ends' terms; returns the target, or None if there are none."""
    fill_end_scores(target, chunk, terms, own_term, heads)
    return optional(target, terms)


@inline
def fill_end_scores(target, chunk, terms, own_term, heads):
    if terms is None:
        return
    own = get(own_term, 0)
    for k in range(chunk.n):
        put(target, k, get(terms, neighbor(chunk.nbrs, k, heads)) + own)


@inline
def finish_logits(logits, n, bias, ends, scalars, inner, outer):
    """Logits from the sums over features, and the terms of edges and of ends.

    ``inner``, ``outer``: their derivatives by these sums and by the terms, or None.
    """
    like = zeros(REAL, 1)
    for k in range(0, n, lanes(like)):
        sums = load(logits, k, like, None)
        extra = load(bias, k, like, None) + load(ends, k, like, None)
        put_slope(inner, k, sums, extra, scalars)
        put_term_slope(outer, k, sums, extra, scalars)
        store(logits, k, logit(sums, extra, scalars), None)


@inline
def put_slope(inner, k, sums, extra, scalars):
    if inner is None:
        return
    store(inner, k, logit_slope(sums, extra, scalars), None)


@inline
def put_term_slope(outer, k, sums, extra, scalars):
    if outer is None:
        return
    store(outer, k, term_slope(sums, extra, scalars), None)


@inline
def add_logit_sums(a, logits, chunk, side):
    clear(logits, chunk.n)
    if KEY_IS_SCALAR:
        sum_scores(a, logits, chunk, side)
    else:
        args = (side, a.heads * a.key_width)
        tile_args = (logits, chunk, side.row, side.param, logit_part, args)
        for_tiles(totals_tile, a.key_width, tile_args)


@inline
def compute_logits(a, logits, bias, chunk, h, side, edge_side):
    """Logits of one head of a chunk; ``logits`` begins the buffers that hold ``bias``."""
    add_logit_sums(a, logits, chunk, side)
    add_edge_dots(a, logits, chunk, edge_side)
    extra = edge_scalars(bias, chunk, shift(a.edge_bias, h), a.heads)
    ends = end_scores(shift(logits, ENDS_AT), chunk, side.terms, side.own_term, a.heads)
    finish_logits(logits, chunk.n, extra, ends, a.scalars, None, None)


@inline
def compute_products(a, b, chunk, h, side, dot_side, edge_side, edge_dot_side):
    """Logits, and <cotangent, what is summed>, of one head; their slopes in ``bias``, ``terms``."""
    logits, dots = b.logits, b.dots
    stride = a.heads * a.width
    dot_args = (dot_side.table, stride)
    clear(dots, chunk.n)
    if KEY_IS_SCALAR:
        add_logit_sums(a, logits, chunk, side)
        for_tiles(totals_tile, a.width, (dots, chunk, dot_side.row, None, dot_part, dot_args))
    else:
        clear(logits, chunk.n)
        args = (logits, dots, chunk, side, dot_side, (side, stride), dot_args)
        for_tiles(products_tile, a.width, args)
    add_edge_dots(a, logits, chunk, edge_side)
    add_edge_dots(a, dots, chunk, edge_dot_side)
    extra = edge_scalars(b.bias, chunk, shift(a.edge_bias, h), a.heads)
    ends = end_scores(b.terms, chunk, side.terms, side.own_term, a.heads)
    inner, outer = optional(b.bias, logit_slope), optional(b.terms, term_slope)
    finish_logits(logits, chunk.n, extra, ends, a.scalars, inner, outer)


@inline
def row_sides(a, row, h):
    """The sides of a logit, by destination."""
    at = h * a.key_width
    query = shift(a.query, row * a.heads * a.key_width + at)
    terms, own_term = shift(a.key_term, h), shift(a.query_term, row * a.heads + h)
    key, param, edge = shift(a.key, at), shift(a.param, at), shift(a.edge, at)
    side = Side(key, query, param, edge, a.scalars, None, terms, own_term)
    return side, EdgeSide(
        asked_features(a, a.edge_query, h),
        shift(a.edge_query, (row * a.heads + h) * a.feature_width),
        None,
    )


@inline
def asked_features(a, asked, h):
    """Features of the edges, of one head; None where ``asked`` is None."""
    return optional(shift(a.edge_features, h * a.feature_head), asked)


# ------------------------------------------------------------------ softmax


@inline
def largest(logits, n, start):
    """Largest value, NaN ignored: it comes back through the sum of exponentials."""
    like = zeros(REAL, 1)
    top = like + start
    for k in range(0, n, lanes(like)):
        values = where(first_lanes(n - k, like), load(logits, k, like, None), start)
        top = where(values > top, values, top)
    return greatest(top)


@inline
def base_of(top):
    """What to subtract before exponentials: a chunk whose logits are all -inf subtracts 0."""
    return top if top > -np.inf else total(zeros(REAL, 1))


@inline
def exponentials(logits, n, base):
    """logits = exp(logits - base); returns the sum."""
    like = zeros(REAL, 1)
    sums = like
    for k in range(0, n, lanes(like)):
        values = exponential(load(logits, k, like, None) - base)
        store(logits, k, values, None)
        sums += active(values, first_lanes(n - k, like))
    return total(sums)
