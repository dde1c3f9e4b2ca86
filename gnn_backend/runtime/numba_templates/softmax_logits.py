"""Logits of a few neighbours at a time, kept in a small buffer; their exponentials.

``gathered`` is the operand read once a neighbour, ``fixed`` the one of the row itself. By
destination the key is gathered (``swap`` is None), by source the query is.
"""

# mypy: disable-error-code=no-untyped-def

import numpy as np

from gnn_backend.runtime.cpu_vector import (
    active,
    exponential,
    first_lanes,
    get,
    lanes,
    load,
    narrow_zero,
    put,
    store,
    total,
)
from gnn_backend.runtime.numba_templates.common import (
    clear,
    for_tiles,
    inline,
)
from gnn_backend.runtime.numba_templates.gatv2 import VALUE_IS_KEY, term

EDGES = 32


@inline
def logits_tile(at, like, mask, logits, n, nbrs, table, stride, row, param, scalars, swap):
    """logits[k] += this tile's part of the logit of neighbour k."""
    fixed, a = load(row, at, like, mask), load(param, at, like, mask)
    for k in range(n):
        gathered = load(table, np.int64(get(nbrs, k)) * stride + at, like, mask)
        if swap is None:
            part = term(gathered, fixed, a, scalars)
        else:
            part = term(fixed, gathered, a, scalars)
        put(logits, k, get(logits, k) + total(active(part, mask)))


@inline
def dots_tile(at, like, mask, dots, n, nbrs, table, stride, row):
    """dots[k] += this tile's part of <table[neighbour k], row>."""
    fixed = load(row, at, like, mask)
    for k in range(n):
        gathered = load(table, np.int64(get(nbrs, k)) * stride + at, like, mask)
        put(dots, k, get(dots, k) + total(gathered * fixed))


@inline
def products_tile(at, like, mask, n, nbrs, stride, logits_args, dots_args):
    """``logits_tile`` and ``dots_tile`` in one pass over the neighbours."""
    logits, table, row, param, scalars, swap = logits_args
    dots, dot_table, dot_row = dots_args
    fixed, a = load(row, at, like, mask), load(param, at, like, mask)
    dot_fixed = load(dot_row, at, like, mask)
    for k in range(n):
        base = np.int64(get(nbrs, k)) * stride + at
        gathered = load(table, base, like, mask)
        dot_gathered = load(dot_table, base, like, mask)
        if swap is None:
            part = term(gathered, fixed, a, scalars)
        else:
            part = term(fixed, gathered, a, scalars)
        put(logits, k, get(logits, k) + total(active(part, mask)))
        put(dots, k, get(dots, k) + total(dot_gathered * dot_fixed))


@inline
def products(n, nbrs, logits_args, dots_args, sample, shape):
    """Logits of ``n`` neighbours and <grad_out, value>, of one head."""
    heads, key_width, width = shape
    logits, table, row, param, scalars, swap = logits_args
    dots, dot_table, dot_row = dots_args
    clear(logits, n)
    clear(dots, n)
    if VALUE_IS_KEY:
        args = (n, nbrs, heads * width, logits_args, dots_args)
        for_tiles(products_tile, width, sample, args)
    else:
        stride = heads * key_width
        logits_only = (logits, n, nbrs, table, stride, row, param, scalars, swap)
        for_tiles(logits_tile, key_width, sample, logits_only)
        dots_only = (dots, n, nbrs, dot_table, heads * width, dot_row)
        for_tiles(dots_tile, width, sample, dots_only)


@inline
def largest(buffer, n, start):
    """Largest value, NaN ignored: it comes back through the sum of exponentials."""
    for k in range(n):
        value = get(buffer, k)
        start = value if value > start else start
    return start


@inline
def base_of(top, sample):
    """What to subtract before exponentials: a chunk whose logits are all -inf subtracts 0."""
    return top if top > -np.inf else total(narrow_zero(sample))


@inline
def exponentials(buffer, n, sample, base):
    """buffer = exp(buffer - base); returns the sum."""
    like = narrow_zero(sample)
    sums = like
    for k in range(0, n, lanes(like)):
        mask = first_lanes(n - k, like)
        values = exponential(load(buffer, k, like, mask) - base)
        store(buffer, k, values, mask)
        sums += active(values, mask)
    return total(sums)


@inline
def softmax_slopes(logits, dots, n, sample):
    """logits = p = exp(logits), dots = p * dots: the derivative of the loss by each logit."""
    like = narrow_zero(sample)
    for k in range(0, n, lanes(like)):
        mask = first_lanes(n - k, like)
        weights = exponential(load(logits, k, like, mask))
        store(logits, k, weights, mask)
        store(dots, k, weights * load(dots, k, like, mask), mask)
