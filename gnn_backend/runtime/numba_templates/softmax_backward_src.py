"""Backward of the softmax-weighted sum by source: key and value gradients.

Where the value is the key (``VALUE_IS_KEY``) both end in ``grad_value``, and ``grad_key`` is a
scratch row a block for the sums that ``finish_key`` turns into a gradient.
"""

# mypy: disable-error-code=no-untyped-def

import numpy as np
from numba import prange

from gnn_backend.runtime.cpu_vector import (
    get,
    load,
    pointer,
    put,
    shift,
    store,
)
from gnn_backend.runtime.numba_templates.common import (
    add_slots,
    block_bounds,
    block_function,
    clear,
    entry,
    for_tiles,
    inline,
    row_edges,
    weighted_sum_tile,
)
from gnn_backend.runtime.numba_templates.gatv2 import (
    VALUE_IS_KEY,
    finish_key,
    key_slope,
)
from gnn_backend.runtime.numba_templates.softmax_logits import EDGES, products, softmax_slopes


@inline
def slopes_by_src_tile(
    at, like, mask, weights, n, nbrs, key, query, stride, param, scalars, key_sums
):
    """Gradient sum of a source row towards its key, before ``finish_key``."""
    x, a = load(key, at, like, mask), load(param, at, like, mask)
    sums = load(key_sums, at, like, mask)
    for k in range(n):
        q = load(query, np.int64(get(nbrs, k)) * stride + at, like, mask)
        sums += key_slope(x, q, a, scalars) * get(weights, k)
    store(key_sums, at, sums, mask)


@inline
def finish_key_tile(at, like, mask, row, key_sums, param, scalars):
    sums, a = load(key_sums, at, like, mask), load(param, at, like, mask)
    gradient = finish_key(sums, a, scalars)
    if VALUE_IS_KEY:
        gradient += load(row, at, like, mask)
    store(row, at, gradient, mask)


@inline
def subtract_stats(logits, dots, n, nbrs, stats, heads):
    for k in range(n):
        at = 2 * np.int64(get(nbrs, k)) * heads
        put(logits, k, get(logits, k) - get(stats, at))
        put(dots, k, get(dots, k) - get(stats, at + 1))


@inline
def backward_src_edges(
    begin, end, indices, tables, row_tables, scalars, key_sums, value_sums, buffers, sample, shape
):
    """Gradients towards one source row over edges begin..end."""
    query, param, grad_out, stats = tables
    key, value = row_tables
    logits, dots = buffers
    heads, key_width, width = shape
    key_stride, stride = heads * key_width, heads * width
    if key_sums is not None:
        clear(key_sums, key_stride)
    if value_sums is not None:
        clear(value_sums, stride)
    for e in range(begin, end, EDGES):
        n = min(end - e, EDGES)
        nbrs = shift(indices, e)
        for h in range(heads):
            at, value_at = h * key_width, h * width
            products(
                n,
                nbrs,
                (logits, shift(query, at), shift(key, at), shift(param, at), scalars, True),
                (dots, shift(grad_out, value_at), shift(value, value_at)),
                sample,
                shape,
            )
            subtract_stats(logits, dots, n, nbrs, shift(stats, 2 * h), heads)
            softmax_slopes(logits, dots, n, sample)
            if value_sums is not None:
                row = shift(value_sums, value_at)
                args = (row, logits, n, nbrs, shift(grad_out, value_at), stride)
                for_tiles(weighted_sum_tile, width, sample, args)
            if key_sums is not None:
                for_tiles(
                    slopes_by_src_tile,
                    key_width,
                    sample,
                    (
                        dots,
                        n,
                        nbrs,
                        shift(key, at),
                        shift(query, at),
                        key_stride,
                        shift(param, at),
                        scalars,
                        shift(key_sums, at),
                    ),
                )
    if key_sums is not None:
        row = value_sums if VALUE_IS_KEY else key_sums
        for_tiles(finish_key_tile, key_stride, sample, (row, key_sums, param, scalars))


@block_function
def backward_src_block(
    block,
    blocks,
    indptr,
    indices,
    tables,
    row_tables,
    scalars,
    grad_key,
    grad_value,
    partial,
    buffers,
    size,
):
    rows, heads, key_width, width = size
    shape = heads, key_width, width
    key, value = row_tables
    slot_key, slot_value, slot_row = partial
    features, outputs = heads * key_width, heads * width
    logits = shift(buffers, block * 2 * EDGES)
    bounds = block_bounds(block, blocks, indptr, rows)
    put(slot_row, 2 * block, -1)
    put(slot_row, 2 * block + 1, -1)
    slot = 2 * block
    for row in range(bounds[0], min(bounds[2] + 1, rows)):
        begin, end, whole = row_edges(row, indptr, bounds)
        if row == bounds[2] and begin == end:
            break
        key_sums = shift(grad_key, (block if VALUE_IS_KEY else row) * features)
        value_sums = shift(grad_value, row * outputs)
        if not whole:
            key_sums = shift(slot_key, slot * features)
            value_sums = shift(slot_value, slot * outputs)
            put(slot_row, slot, row)
            slot += 1
        backward_src_edges(
            begin,
            end,
            indices,
            tables,
            (shift(key, row * features), shift(value, row * outputs)),
            scalars,
            key_sums,
            value_sums,
            (logits, shift(logits, EDGES)),
            key,
            shape,
        )


@entry
def backward_src(
    blocks,
    indptr,
    indices,
    key,
    query,
    param,
    value,
    scalars,
    grad_out,
    stats,
    grad_key,
    grad_value,
    partial,
    buffers,
    size,
):
    """Gradients towards the key and value tables; by_src CSR."""
    if VALUE_IS_KEY:
        value = key
    for block in prange(blocks):
        backward_src_block(
            block,
            blocks,
            pointer(indptr),
            pointer(indices),
            (pointer(query), pointer(param), pointer(grad_out), pointer(stats)),
            (pointer(key), pointer(value)),
            scalars,
            pointer(grad_key),
            pointer(grad_value),
            (pointer(partial[0]), pointer(partial[1]), pointer(partial[2])),
            pointer(buffers),
            size,
        )
    slot_row = pointer(partial[2])
    if grad_key is not None and not VALUE_IS_KEY:
        features = size[1] * size[2]
        add_slots(2 * blocks, pointer(partial[0]), slot_row, pointer(grad_key), features)
    if grad_value is not None:
        outputs = size[1] * size[3]
        add_slots(2 * blocks, pointer(partial[1]), slot_row, pointer(grad_value), outputs)
