"""Logits of a few neighbours at a time, kept in a small buffer; their exponentials.

``table`` holds the operand that is gathered, one row a neighbour, ``row`` the operand of the row
itself. By destination the key is gathered (``swap`` is None), by source the query is.
"""

# mypy: disable-error-code=no-untyped-def

import numpy as np

from gnn_backend.runtime.cpu_memory import get, load, put, store
from gnn_backend.runtime.cpu_vector import (
    active,
    evens,
    exponential,
    first_lanes,
    lanes,
    odds,
    pair_zero,
    total,
    totals,
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
from gnn_backend.runtime.numba_templates.gatv2 import VALUE_IS_KEY, term

EDGES = 32  # neighbours at a time: two gathered tiles of them stay in the first-level cache


@inline
def logit_part(offset, like, mask, table, fixed, a, scalars, swap):
    """A tile of the terms of one neighbour's logit."""
    gathered = load(table, offset, like, mask)
    if swap is None:
        return active(term(gathered, fixed, a, scalars), mask)
    return active(term(fixed, gathered, a, scalars), mask)


@inline
def add_to(buffer, at, vector):
    store(buffer, at, load(buffer, at, vector, None) + vector, None)


@inline
def logits_tile(at, like, mask, logits, n, nbrs, reach, stride, logit_args):
    """logits[k] += this tile's part of the logit of neighbour k."""
    table, row, param, scalars, swap = logit_args
    fixed, a = load(row, at, like, mask), load(param, at, like, mask)
    whole = n - n % 4
    for k in range(0, whole, 4):
        for ahead in range(4):
            fetch_ahead(table, at, like, nbrs, k + ahead, reach, stride)
        p0 = neighbor(nbrs, k, stride) + at
        p1 = neighbor(nbrs, k + 1, stride) + at
        p2 = neighbor(nbrs, k + 2, stride) + at
        p3 = neighbor(nbrs, k + 3, stride) + at
        sums = totals(
            logit_part(p0, like, mask, table, fixed, a, scalars, swap),
            logit_part(p1, like, mask, table, fixed, a, scalars, swap),
            logit_part(p2, like, mask, table, fixed, a, scalars, swap),
            logit_part(p3, like, mask, table, fixed, a, scalars, swap),
        )
        add_to(logits, k, sums)
    for k in range(whole, n):
        fetch_ahead(table, at, like, nbrs, k, reach, stride)
        p0 = neighbor(nbrs, k, stride) + at
        part = logit_part(p0, like, mask, table, fixed, a, scalars, swap)
        put(logits, k, get(logits, k) + total(part))


@inline
def dots_tile(at, like, mask, products, n, nbrs, reach, stride, dot_args):
    """products[k, 1] += this tile's part of <table[neighbour k], row>."""
    table, row = dot_args
    fixed = load(row, at, like, mask)
    for k in range(n):
        fetch_ahead(table, at, like, nbrs, k, reach, stride)
        gathered = load(table, neighbor(nbrs, k, stride) + at, like, mask)
        put(products, 2 * k + 1, get(products, 2 * k + 1) + total(gathered * fixed))


@inline
def spaced_logits_tile(at, like, mask, products, n, nbrs, reach, stride, logit_args):
    """products[k, 0] += this tile's part of the logit of neighbour k."""
    table, row, param, scalars, swap = logit_args
    fixed, a = load(row, at, like, mask), load(param, at, like, mask)
    for k in range(n):
        fetch_ahead(table, at, like, nbrs, k, reach, stride)
        offset = neighbor(nbrs, k, stride) + at
        part = logit_part(offset, like, mask, table, fixed, a, scalars, swap)
        put(products, 2 * k, get(products, 2 * k) + total(part))


@inline
def products_tile(at, like, mask, products, n, nbrs, reach, stride, logit_args, dot_args):
    """``spaced_logits_tile`` and ``dots_tile`` in one pass over the neighbours."""
    table, row, param, scalars, swap = logit_args
    dot_table, dot_row = dot_args
    fixed, a = load(row, at, like, mask), load(param, at, like, mask)
    dot_fixed = load(dot_row, at, like, mask)
    for k in range(0, n - 1, 2):
        fetch_ahead(table, at, like, nbrs, k, reach, stride)
        fetch_ahead(dot_table, at, like, nbrs, k, reach, stride)
        fetch_ahead(table, at, like, nbrs, k + 1, reach, stride)
        fetch_ahead(dot_table, at, like, nbrs, k + 1, reach, stride)
        p0 = neighbor(nbrs, k, stride) + at
        p1 = neighbor(nbrs, k + 1, stride) + at
        sums = totals(
            logit_part(p0, like, mask, table, fixed, a, scalars, swap),
            load(dot_table, p0, like, mask) * dot_fixed,
            logit_part(p1, like, mask, table, fixed, a, scalars, swap),
            load(dot_table, p1, like, mask) * dot_fixed,
        )
        add_to(products, 2 * k, sums)
    if n % 2 == 1:
        k = n - 1
        fetch_ahead(table, at, like, nbrs, k, reach, stride)
        fetch_ahead(dot_table, at, like, nbrs, k, reach, stride)
        p0 = neighbor(nbrs, k, stride) + at
        part = logit_part(p0, like, mask, table, fixed, a, scalars, swap)
        dot = load(dot_table, p0, like, mask) * dot_fixed
        put(products, 2 * k, get(products, 2 * k) + total(part))
        put(products, 2 * k + 1, get(products, 2 * k + 1) + total(dot))


@inline
def compute_products(a, products, n, nbrs, reach, logit_args, dot_args):
    """products[k] = (logit of neighbour k, <grad_out, value>), of one head."""
    clear(products, 2 * n)
    stride = a.heads * a.width
    if VALUE_IS_KEY:
        both_args = (products, n, nbrs, reach, stride, logit_args, dot_args)
        for_tiles(products_tile, a.width, both_args)
    else:
        key_args = (products, n, nbrs, reach, a.heads * a.key_width, logit_args)
        for_tiles(spaced_logits_tile, a.key_width, key_args)
        for_tiles(dots_tile, a.width, (products, n, nbrs, reach, stride, dot_args))


@inline
def subtract_own_stats(products, n, stats):
    """products[k] -= (log-sum-exp, <grad_out, out>) of the row itself."""
    fixed = load(stats, 0, pair_zero(REAL), None)
    for k in range(n):
        store(products, 2 * k, load(products, 2 * k, fixed, None) - fixed, None)


@inline
def subtract_stats(products, n, nbrs, stats, heads):
    """products[k] -= (log-sum-exp, <grad_out, out>) of neighbour k."""
    for k in range(n):
        pair = load(stats, neighbor(nbrs, k, 2 * heads), pair_zero(REAL), None)
        store(products, 2 * k, load(products, 2 * k, pair, None) - pair, None)


@inline
def softmax_slopes(products, n, weights, slopes):
    """weights = p = exp(products[:, 0]); slopes = p * products[:, 1], the loss by each logit."""
    like = zeros(REAL, 1)
    for k in range(0, n, lanes(like)):
        left = load(products, 2 * k, like, None)
        right = load(products, 2 * k + lanes(like), like, None)
        p = exponential(evens(left, right))
        store(weights, k, p, None)
        store(slopes, k, p * odds(left, right), None)


@inline
def largest(logits, n, start):
    """Largest value, NaN ignored: it comes back through the sum of exponentials."""
    for k in range(n):
        value = get(logits, k)
        start = value if value > start else start
    return start


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
