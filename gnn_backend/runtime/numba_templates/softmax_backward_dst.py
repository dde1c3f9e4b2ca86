"""Backward of the softmax-weighted sum by destination: query, parameter and edge gradients."""

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
    row_of,
    slot_target,
)
from gnn_backend.runtime.numba_templates.gatv2 import (
    KEY_IS_SCALAR,
    VALUE_IS_KEY,
    finish_query,
    param_slope,
    query_slope,
)
from gnn_backend.runtime.numba_templates.softmax_edges import (
    EDGES,
    chunk_at,
    edge_position,
    put_edge_scalars,
    weighted_edges_tile,
)
from gnn_backend.runtime.numba_templates.softmax_logits import (
    EdgeSide,
    asked_features,
    row_sides,
)
from gnn_backend.runtime.numba_templates.softmax_slopes import (
    DotSide,
    add_total,
    backward_buffers,
    chunk_slopes,
)


@inline
def slopes_by_dst_tile(at, like, mask, slopes, chunk, side, stride, targets):
    """Gradients towards the query of a row, the parameter, and the edges' own rows."""
    query_sums, param_sums, edge_rows = targets
    q, a = load(side.row, at, like, mask), load(side.param, at, like, mask)
    query_sum, param_sum = like, like
    for k in range(chunk.n):
        x = load(side.table, neighbor(chunk.nbrs, k, stride) + at, like, mask)
        x += load(side.edge, edge_position(side.edge, chunk, k, stride) + at, like, mask)
        slope = get(slopes, k)
        towards_query = query_slope(x, q, a, side.scalars) * slope
        query_sum += towards_query
        param_sum += param_slope(x, q, a, side.scalars) * slope
        # An edge's row is added to the query's, so their gradients are the same.
        own = edge_position(edge_rows, chunk, k, stride) + at
        store(edge_rows, own, finish_query(towards_query, a, side.scalars), mask)
    store(query_sums, at, load(query_sums, at, like, mask) + query_sum, mask)
    store(param_sums, at, load(param_sums, at, like, mask) + param_sum, mask)


@inline
def finish_query_tile(at, like, mask, sums, param, scalars):
    gradient = finish_query(load(sums, at, like, mask), load(param, at, like, mask), scalars)
    store(sums, at, gradient, mask)


@inline
def features_tile(at, like, mask, target, b, chunk, stride, add, query, grad_row, scalars):
    """Gradients of the edges' features: through their logits, and through what is summed."""
    asked = finish_query(load(query, at, like, mask), like, scalars)
    summed = load(grad_row, at, like, mask)
    for k in range(chunk.n):
        own = edge_position(target, chunk, k, stride) + at
        gradient = asked * get(b.slopes, k) + summed * get(b.weights, k)
        if add:
            gradient += load(target, own, like, mask)
        store(target, own, gradient, mask)


@inline
def feature_gradients(a, row, b, chunk, h, target, edge_query_sums):
    """Gradients of one head towards the features of a chunk, and towards the row's edge query."""
    width, at = a.feature_width, (row * a.heads + h) * a.feature_width
    if edge_query_sums is not None:
        features = asked_features(a, edge_query_sums, h)
        sum_args = (shift(edge_query_sums, h * width), b.slopes, chunk, features, a.feature_stride)
        for_tiles(weighted_edges_tile, width, sum_args)
    if target is not None:
        add = h > 0 and a.feature_head == 0  # features shared by the heads
        args = (shift(target, h * a.feature_head), b, chunk, a.feature_stride, add)
        rows = (shift(a.edge_query, at), shift(a.grad_out_edge, at), a.scalars)
        for_tiles(features_tile, width, args + rows)


@inline
def destination_sides(a, row, h):
    """What logits and weight gradients are computed of, by destination."""
    side, edge_side = row_sides(a, row, h)
    value, at = a.key if VALUE_IS_KEY else a.value, h * a.width
    dot_side = DotSide(shift(value, at), shift(a.grad_out, row * a.heads * a.width + at))
    edge_dot_side = EdgeSide(
        asked_features(a, a.grad_out_edge, h),
        shift(a.grad_out_edge, (row * a.heads + h) * a.feature_width),
        None,
    )
    return side, dot_side, edge_side, edge_dot_side


@inline
def backward_dst_edges(a, row, begin, end, sums, param_sums, buffer):
    """Gradients towards one destination row (over edges begin..end), parameter and edges."""
    query_sums, edge_query_sums, term_sums = sums
    b = backward_buffers(buffer)
    key_stride, stats = a.heads * a.key_width, shift(a.stats, row * a.heads * 2)
    clear(query_sums, key_stride)
    clear(edge_query_sums, a.heads * a.feature_width)
    clear(term_sums, a.heads)
    for e in range(begin, end, EDGES):
        chunk = chunk_at(a, e, end)
        for h in range(a.heads):
            at = h * a.key_width
            sides = destination_sides(a, row, h)
            chunk_slopes(a, b, chunk, h, sides, shift(stats, 2 * h), None)
            put_edge_scalars(shift(a.grad_edge_bias, h), chunk, a.heads, b.slopes)
            add_total(term_sums, h, b.terms, chunk.n)
            if KEY_IS_SCALAR:
                add_total(query_sums, at, b.slopes, chunk.n)
            else:
                targets = shift(query_sums, at), shift(param_sums, at), shift(a.grad_edge, at)
                args = (b.slopes, chunk, sides[0], key_stride, targets)
                for_tiles(slopes_by_dst_tile, a.key_width, args)
            feature_gradients(a, row, b, chunk, h, a.grad_edge_features, edge_query_sums)
    if end > begin:  # 0 times an infinite parameter would be NaN
        for_tiles(finish_query_tile, key_stride, (query_sums, a.param, a.scalars))
        edge_args = (edge_query_sums, None, a.scalars)
        for_tiles(finish_query_tile, a.heads * a.feature_width, edge_args)


def backward_dst(block, address):
    """Gradients of a block towards the query table and, a row a block, the parameter; by_dst."""
    a = arguments(address)
    buffer = shift(a.buffers, block * a.buffer_stride)
    features, edge_features = a.heads * a.key_width, a.heads * a.feature_width
    param_sums = shift(a.grad_param, block * features)
    clear(param_sums, features)
    bounds = block_bounds(block, a)
    clear_slots(block, a)
    slot = 2 * block
    for place in range(bounds[0], min(bounds[2] + 1, a.rows)):
        begin, end, whole = row_edges(place, bounds, a)
        if place == bounds[2] and begin == end:
            break
        row = row_of(a.row_ids, place)
        query_sums = shift(a.grad_query, row * features)
        edge_query_sums = shift(a.grad_edge_query, row * edge_features)
        term_sums = shift(a.grad_query_term, row * a.heads)
        if not whole:
            query_sums = slot_target(a.slot_sums, slot * features, query_sums)
            edge_query_sums = slot_target(a.slot_edge, slot * edge_features, edge_query_sums)
            term_sums = slot_target(a.slot_term, slot * a.heads, term_sums)
            put(a.slot_row, slot, place)
            slot += 1
        sums = query_sums, edge_query_sums, term_sums
        backward_dst_edges(a, row, begin, end, sums, param_sums, buffer)


def merge_backward_dst(block, address):
    """Add the partial query gradients of each row, and the parameter gradients of the blocks."""
    a = arguments(address)
    features = a.heads * a.key_width
    add_slots(a, a.slot_sums, a.grad_query, features)
    add_slots(a, a.slot_edge, a.grad_edge_query, a.heads * a.feature_width)
    add_slots(a, a.slot_term, a.grad_query_term, a.heads)
    for other in range(1, a.blocks):
        add_scaled(a.grad_param, features, shift(a.grad_param, other * features), 1.0)
