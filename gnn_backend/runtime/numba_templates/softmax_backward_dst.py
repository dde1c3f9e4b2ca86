"""Backward of the softmax-weighted sum by destination: query and parameter gradients."""

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
    add_scaled,
    add_slots,
    block_bounds,
    block_function,
    clear,
    entry,
    for_tiles,
    inline,
    row_edges,
)
from gnn_backend.runtime.numba_templates.gatv2 import (
    VALUE_IS_KEY,
    finish_query,
    param_slope,
    query_slope,
)
from gnn_backend.runtime.numba_templates.softmax_logits import EDGES, products, softmax_slopes


@inline
def slopes_by_dst_tile(
    at, like, mask, weights, n, indices, key, stride, query, param, scalars, grad_query, grad_param
):
    """Gradient sums of a destination row: towards its query, and towards the parameter."""
    q, a = load(query, at, like, mask), load(param, at, like, mask)
    query_sum, param_sum = like, like
    for k in range(n):
        x = load(key, np.int64(get(indices, k)) * stride + at, like, mask)
        weight = get(weights, k)
        if grad_query is not None:
            query_sum += query_slope(x, q, a, scalars) * weight
        if grad_param is not None:
            param_sum += param_slope(x, q, a, scalars) * weight
    if grad_query is not None:
        store(grad_query, at, load(grad_query, at, like, mask) + query_sum, mask)
    if grad_param is not None:
        store(grad_param, at, load(grad_param, at, like, mask) + param_sum, mask)


@inline
def finish_query_tile(at, like, mask, row, param, scalars):
    sums, a = load(row, at, like, mask), load(param, at, like, mask)
    gradient = finish_query(sums, a, scalars)
    store(row, at, gradient, mask)


@inline
def backward_dst_edges(
    begin, end, indices, tables, row_tables, scalars, grad_query, grad_param, buffers, sample, shape
):
    """Gradients towards one destination row (over edges begin..end) and the parameter."""
    key, param, value = tables
    query, grad_row, stats = row_tables
    logits, dots = buffers
    heads, key_width, width = shape
    if grad_query is not None:
        clear(grad_query, heads * key_width)
    for e in range(begin, end, EDGES):
        n = min(end - e, EDGES)
        nbrs = shift(indices, e)
        for h in range(heads):
            at, value_at = h * key_width, h * width
            products(
                n,
                nbrs,
                (logits, shift(key, at), shift(query, at), shift(param, at), scalars, None),
                (dots, shift(value, value_at), shift(grad_row, value_at)),
                sample,
                shape,
            )
            lse, product = get(stats, 2 * h), get(stats, 2 * h + 1)
            for k in range(n):
                put(logits, k, get(logits, k) - lse)
                put(dots, k, get(dots, k) - product)
            softmax_slopes(logits, dots, n, sample)
            for_tiles(
                slopes_by_dst_tile,
                key_width,
                sample,
                (
                    dots,
                    n,
                    nbrs,
                    shift(key, at),
                    heads * key_width,
                    shift(query, at),
                    shift(param, at),
                    scalars,
                    shift(grad_query, at),
                    shift(grad_param, at),
                ),
            )
    if grad_query is not None:
        for_tiles(finish_query_tile, heads * key_width, sample, (grad_query, param, scalars))


@block_function
def backward_dst_block(
    block,
    blocks,
    indptr,
    indices,
    tables,
    row_tables,
    scalars,
    grad_query,
    grad_param,
    partial,
    buffers,
    size,
):
    rows, heads, key_width, width = size
    shape = heads, key_width, width
    query, grad_out, stats = row_tables
    slot_sums, slot_row = partial
    logits = shift(buffers, block * 2 * EDGES)
    features = heads * key_width
    param_sums = shift(grad_param, block * features)
    if grad_param is not None:
        clear(param_sums, features)
    bounds = block_bounds(block, blocks, indptr, rows)
    put(slot_row, 2 * block, -1)
    put(slot_row, 2 * block + 1, -1)
    slot = 2 * block
    for row in range(bounds[0], min(bounds[2] + 1, rows)):
        begin, end, whole = row_edges(row, indptr, bounds)
        if row == bounds[2] and begin == end:
            break
        row_target = shift(grad_query, row * features)
        if not whole:
            row_target = shift(slot_sums, slot * features)
            put(slot_row, slot, row)
            slot += 1
        backward_dst_edges(
            begin,
            end,
            indices,
            tables,
            (
                shift(query, row * features),
                shift(grad_out, row * heads * width),
                shift(stats, row * heads * 2),
            ),
            scalars,
            row_target,
            param_sums,
            (logits, shift(logits, EDGES)),
            query,
            shape,
        )


@entry
def backward_dst(
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
    grad_query,
    grad_param,
    partial,
    buffers,
    size,
):
    """Gradients towards the query table and (one row a block) the parameter; by_dst CSR."""
    if VALUE_IS_KEY:
        value = key
    for block in prange(blocks):
        backward_dst_block(
            block,
            blocks,
            pointer(indptr),
            pointer(indices),
            (pointer(key), pointer(param), pointer(value)),
            (pointer(query), pointer(grad_out), pointer(stats)),
            scalars,
            pointer(grad_query),
            pointer(grad_param),
            (pointer(partial[0]), pointer(partial[1])),
            pointer(buffers),
            size,
        )
    features = size[1] * size[2]
    if grad_query is not None:
        add_slots(
            2 * blocks, pointer(partial[0]), pointer(partial[1]), pointer(grad_query), features
        )
    if grad_param is not None:
        sums = pointer(grad_param)
        for block in range(1, blocks):
            add_scaled(sums, features, shift(sums, block * features), 1.0)
