"""Backward of the softmax-weighted sum by destination: query and parameter gradients."""

# mypy: disable-error-code=no-untyped-def

from gnn_backend.runtime.cpu_memory import get, load, put, shift, store
from gnn_backend.runtime.numba_templates.common import (
    add_scaled,
    add_slots,
    arguments,
    block_bounds,
    clear,
    clear_slots,
    for_tiles,
    inline,
    neighbor,
    row_edges,
    slot_target,
)
from gnn_backend.runtime.numba_templates.gatv2 import (
    VALUE_IS_KEY,
    finish_query,
    param_slope,
    query_slope,
)
from gnn_backend.runtime.numba_templates.softmax_logits import (
    EDGES,
    compute_products,
    softmax_slopes,
    subtract_own_stats,
)


@inline
def slopes_by_dst_tile(at, like, mask, slopes, n, nbrs, stride, operands, targets):
    """Gradient sums of a destination row: towards its query, and towards the parameter."""
    key, query, param, scalars, _ = operands
    query_sums, param_sums = targets
    q, a = load(query, at, like, mask), load(param, at, like, mask)
    query_sum, param_sum = like, like
    for k in range(n):
        x = load(key, neighbor(nbrs, k, stride) + at, like, mask)
        slope = get(slopes, k)
        query_sum += query_slope(x, q, a, scalars) * slope
        param_sum += param_slope(x, q, a, scalars) * slope
    store(query_sums, at, load(query_sums, at, like, mask) + query_sum, mask)
    store(param_sums, at, load(param_sums, at, like, mask) + param_sum, mask)


@inline
def finish_query_tile(at, like, mask, sums, param, scalars):
    gradient = finish_query(load(sums, at, like, mask), load(param, at, like, mask), scalars)
    store(sums, at, gradient, mask)


@inline
def backward_dst_edges(a, row, begin, end, query_sums, param_sums, buffer):
    """Gradients towards one destination row (over edges begin..end) and the parameter."""
    products, weights, slopes = buffer, shift(buffer, 2 * EDGES), shift(buffer, 3 * EDGES)
    key_stride, stride = a.heads * a.key_width, a.heads * a.width
    value = a.key if VALUE_IS_KEY else a.value
    query, grad_row = shift(a.query, row * key_stride), shift(a.grad_out, row * stride)
    stats = shift(a.stats, row * a.heads * 2)
    clear(query_sums, key_stride)
    for e in range(begin, end, EDGES):
        n = min(end - e, EDGES)
        nbrs, reach = shift(a.indices, e), a.edges - e - 1
        for h in range(a.heads):
            at, value_at = h * a.key_width, h * a.width
            operands = (shift(a.key, at), shift(query, at), shift(a.param, at), a.scalars, None)
            dot_args = (shift(value, value_at), shift(grad_row, value_at))
            compute_products(a, products, n, nbrs, reach, operands, dot_args)
            subtract_own_stats(products, n, shift(stats, 2 * h))
            softmax_slopes(products, n, weights, slopes)
            targets = (shift(query_sums, at), shift(param_sums, at))
            args = (slopes, n, nbrs, key_stride, operands, targets)
            for_tiles(slopes_by_dst_tile, a.key_width, args)
    if end > begin:  # 0 times an infinite parameter would be NaN
        for_tiles(finish_query_tile, key_stride, (query_sums, a.param, a.scalars))


def backward_dst(block, address):
    """Gradients of a block towards the query table and, a row a block, the parameter; by_dst."""
    a = arguments(address)
    buffer = shift(a.buffers, block * a.buffer_stride)
    features = a.heads * a.key_width
    param_sums = shift(a.grad_param, block * features)
    clear(param_sums, features)
    bounds = block_bounds(block, a)
    clear_slots(block, a)
    slot = 2 * block
    for row in range(bounds[0], min(bounds[2] + 1, a.rows)):
        begin, end, whole = row_edges(row, bounds, a)
        if row == bounds[2] and begin == end:
            break
        query_sums = shift(a.grad_query, row * features)
        if not whole:
            query_sums = slot_target(a.slot_sums, slot * features, query_sums)
            put(a.slot_row, slot, row)
            slot += 1
        backward_dst_edges(a, row, begin, end, query_sums, param_sums, buffer)


def merge_backward_dst(block, address):
    """Add the partial query gradients of each row, and the parameter gradients of the blocks."""
    a = arguments(address)
    features = a.heads * a.key_width
    add_slots(a, a.slot_sums, a.grad_query, features)
    for other in range(1, a.blocks):
        add_scaled(a.grad_param, features, shift(a.grad_param, other * features), 1.0)
