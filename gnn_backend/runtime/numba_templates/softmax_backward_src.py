"""Backward of the softmax-weighted sum by source: key and value gradients.

Where the value is the key (``VALUE_IS_KEY``) both end in ``grad_value``, and ``grad_key`` is a
scratch row a block for the sums that ``finish_key`` turns into a gradient.
"""

# mypy: disable-error-code=no-untyped-def

from gnn_backend.runtime.cpu_memory import get, load, put, shift, store
from gnn_backend.runtime.numba_templates.common import (
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
    weighted_sum_tile,
)
from gnn_backend.runtime.numba_templates.gatv2 import (
    KEY_IS_SCALAR,
    VALUE_IS_KEY,
    finish_key,
    key_slope,
)
from gnn_backend.runtime.numba_templates.softmax_edges import EDGES, chunk_at, edge_position
from gnn_backend.runtime.numba_templates.softmax_logits import EdgeSide, Side, asked_features
from gnn_backend.runtime.numba_templates.softmax_slopes import (
    DotSide,
    add_total,
    backward_buffers,
    chunk_slopes,
)


@inline
def slopes_by_src_tile(at, like, mask, slopes, chunk, side, stride, key_sums):
    """Gradient sum of a source row towards its key, before ``finish_key``."""
    x, a = load(side.row, at, like, mask), load(side.param, at, like, mask)
    sums = load(key_sums, at, like, mask)
    for k in range(chunk.n):
        q = load(side.table, neighbor(chunk.nbrs, k, stride) + at, like, mask)
        q += load(side.edge, edge_position(side.edge, chunk, k, stride) + at, like, mask)
        sums += key_slope(x, q, a, side.scalars) * get(slopes, k)
    store(key_sums, at, sums, mask)


@inline
def finish_key_tile(at, like, mask, row, key_sums, param, scalars):
    gradient = finish_key(load(key_sums, at, like, mask), load(param, at, like, mask), scalars)
    if VALUE_IS_KEY:
        gradient += load(row, at, like, mask)
    store(row, at, gradient, mask)


@inline
def source_sides(a, row, key, value, h):
    """What logits and weight gradients are computed of, by source."""
    at, value_at, edge_at = h * a.key_width, h * a.width, h * a.feature_width
    edge, scalars = shift(a.edge, at), a.scalars
    query, param = shift(a.query, at), shift(a.param, at)
    terms, own_term = shift(a.query_term, h), shift(a.key_term, row * a.heads + h)
    side = Side(query, shift(key, at), param, edge, scalars, True, terms, own_term)
    dot_side = DotSide(shift(a.grad_out, value_at), shift(value, value_at))
    asked, summed = a.edge_query, a.grad_out_edge
    edge_side = EdgeSide(asked_features(a, asked, h), None, shift(asked, edge_at))
    edge_dot_side = EdgeSide(asked_features(a, summed, h), None, shift(summed, edge_at))
    return side, dot_side, edge_side, edge_dot_side


@inline
def backward_src_edges(a, row, begin, end, sums, buffer):
    """Gradients towards one source row over edges begin..end."""
    key_sums, value_sums, term_sums = sums
    b = backward_buffers(buffer)
    key_stride, stride = a.heads * a.key_width, a.heads * a.width
    key = shift(a.key, row * key_stride)
    value = key if VALUE_IS_KEY else shift(a.value, row * stride)
    clear(key_sums, key_stride)
    clear(value_sums, stride)
    clear(term_sums, a.heads)
    for e in range(begin, end, EDGES):
        chunk = chunk_at(a, e, end)
        for h in range(a.heads):
            at, value_at = h * a.key_width, h * a.width
            sides = source_sides(a, row, key, value, h)
            chunk_slopes(a, b, chunk, h, sides, shift(a.stats, 2 * h), True)
            grad_out, head_sums = sides[1].table, shift(value_sums, value_at)
            sum_args = (head_sums, b.weights, chunk, grad_out, stride, None)
            for_tiles(weighted_sum_tile, a.width, sum_args)
            add_total(term_sums, h, b.terms, chunk.n)
            if KEY_IS_SCALAR:
                add_total(key_sums, at, b.slopes, chunk.n)
            else:
                args = (b.slopes, chunk, sides[0], key_stride, shift(key_sums, at))
                for_tiles(slopes_by_src_tile, a.key_width, args)
    if end > begin:  # 0 times an infinite parameter would be NaN
        row_sums = value_sums if VALUE_IS_KEY else key_sums
        for_tiles(finish_key_tile, key_stride, (row_sums, key_sums, a.param, a.scalars))


def backward_src(block, address):
    """Gradients of a block towards the key and value tables; by_src CSR."""
    a = arguments(address)
    buffer = shift(a.buffers, block * a.buffer_stride)
    features, outputs = a.heads * a.key_width, a.heads * a.width
    bounds = block_bounds(block, a)
    clear_slots(block, a)
    slot = 2 * block
    for place in range(bounds[0], min(bounds[2] + 1, a.rows)):
        begin, end, whole = row_edges(place, bounds, a)
        if place == bounds[2] and begin == end:
            break
        row = row_of(a.row_ids, place)
        key_sums = shift(a.grad_key, (block if VALUE_IS_KEY else row) * features)
        value_sums = shift(a.grad_value, row * outputs)
        term_sums = shift(a.grad_key_term, row * a.heads)
        if not whole:
            if not VALUE_IS_KEY:
                key_sums = slot_target(a.slot_more, slot * features, key_sums)
            value_sums = slot_target(a.slot_sums, slot * outputs, value_sums)
            term_sums = slot_target(a.slot_term, slot * a.heads, term_sums)
            put(a.slot_row, slot, place)
            slot += 1
        sums = key_sums, value_sums, term_sums
        backward_src_edges(a, row, begin, end, sums, buffer)


def merge_backward_src(block, address):
    """Add the partial gradients of each row."""
    a = arguments(address)
    add_slots(a, a.slot_sums, a.grad_value, a.heads * a.width)
    add_slots(a, a.slot_term, a.grad_key_term, a.heads)
    if not VALUE_IS_KEY:
        add_slots(a, a.slot_more, a.grad_key, a.heads * a.key_width)
