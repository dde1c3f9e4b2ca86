"""Backward of the reductions by source: gradients of x, of what the edges bring, of temperature.

Every out-edge gathers the gradients, and what else is needed, of its destination.
"""

# mypy: disable-error-code=no-untyped-def

from gnn_backend.runtime.cpu_memory import get, load, prefetch, put, shift, store
from gnn_backend.runtime.cpu_vector import active, exponential, total, where
from gnn_backend.runtime.numba_templates.aggregate_arguments import (
    aggregation,
    compared,
    edge_place,
    edge_value,
)
from gnn_backend.runtime.numba_templates.common import (
    AHEAD,
    add_scaled,
    add_slots,
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
from gnn_backend.runtime.numba_templates.message_copy import edge_slope, message, x_slope

EDGES = 64  # whose sums over the features are kept at a time, where edges have numbers


@inline
def sum_slope(grad, o, m, slope, like, mask):
    if grad is None:
        return slope
    return slope + load(grad, o, like, mask)


@inline
def square_slope(grad, o, m, slope, like, mask):
    if grad is None:
        return slope
    return slope + load(grad, o, like, mask) * m * 2.0


@inline
def extreme_slope(grad, best, o, m, slope, like, mask):
    """``grad`` is divided by the number of ties; 0 ties (NaN has won) make it infinite or NaN.

    Torch multiplies with 0 where a message has not won, so that these give NaN.
    """
    if grad is None:
        return slope
    won = where(compared(m) == load(best, o, like, mask), 1.0, like)
    return slope + load(grad, o, like, mask) * won


@inline
def mul_slope(grad, product, rest, o, m, slope, like, mask):
    """The product of the others: of a single 0 it is kept, else the product is divided."""
    if grad is None:
        return slope
    zero = m == 0.0
    others = load(product, o, like, mask) / where(zero, 1.0, m)
    others = where(zero, load(rest, o, like, mask), others)
    return slope + load(grad, o, like, mask) * others


@inline
def softmax_slope(grad, a, o, m, t, slope, like, mask):
    if grad is None:
        return slope
    alpha = exponential(m * t - load(a.softmax_lse, o, like, mask))
    spread = m - load(a.softmax, o, like, mask)
    return slope + alpha * load(grad, o, like, mask) * (t * spread + 1.0)


@inline
def temperature_slope(target, a, o, m, t, like, mask):
    """What an edge adds to the gradient of temperature: alpha * (m - mean)^2, summed over a row."""
    if target is None:
        return like
    alpha = exponential(m * t - load(a.softmax_lse, o, like, mask))
    spread = m - load(a.softmax, o, like, mask)
    return alpha * load(a.grad_softmax, o, like, mask) * spread * spread


@inline
def message_slope(a, o, m, t, like, mask):
    """Gradient towards a message whose destination's tile is at ``o``."""
    slope = sum_slope(a.grad_sum, o, m, like, like, mask)
    slope = square_slope(a.grad_square, o, m, slope, like, mask)
    slope = extreme_slope(a.grad_max, a.max, o, m, slope, like, mask)
    slope = extreme_slope(a.grad_min, a.min, o, m, slope, like, mask)
    slope = mul_slope(a.grad_mul, a.mul, a.mul_rest, o, m, slope, like, mask)
    return softmax_slope(a.grad_softmax, a, o, m, t, slope, like, mask)


@inline
def fetch_destination(a, k, column, stride, like):
    """Ask for what a later edge gathers."""
    o = neighbor(a.indices, min(k + AHEAD, a.edges - 1), stride) + column
    fetch(a.grad_sum, o, like)
    fetch(a.grad_square, o, like)
    fetch(a.grad_max, o, like)
    fetch_with(a.grad_max, a.max, o, like)
    fetch(a.grad_min, o, like)
    fetch_with(a.grad_min, a.min, o, like)
    fetch(a.grad_mul, o, like)
    fetch_with(a.grad_mul, a.mul, o, like)
    fetch(a.grad_softmax, o, like)
    fetch_with(a.grad_softmax, a.softmax, o, like)
    fetch_with(a.grad_softmax, a.softmax_lse, o, like)


@inline
def fetch(table, o, like):
    if table is None:
        return
    prefetch(table, o, like)


@inline
def fetch_with(asked, table, o, like):
    if asked is None:
        return
    prefetch(table, o, like)


@inline
def add_dot(sums, k, vector, mask):
    if sums is None:
        return
    put(sums, k, get(sums, k) + total(active(vector, mask)))


@inline
def backward_tile(at, like, mask, a, row, h, begin, end, x_sums, t_sums, edge_sums):
    """Gradients of a tile of a source row over edges begin..end."""
    column, stride = h * a.width + at, a.heads * a.width
    x = load(a.x, row * stride + column, like, mask)
    t = load(a.temperature, column, like, mask)
    x_sum, t_sum = load(x_sums, column, like, mask), load(t_sums, column, like, mask)
    for k in range(begin, end):
        fetch_destination(a, k, column, stride, like)
        o = neighbor(a.indices, k, stride) + column
        place = edge_place(a.edge_ids, k) * a.heads + h
        edge = edge_value(a, place, at, like, mask)
        m = message(x, edge)
        slope = message_slope(a, o, m, t, like, mask)
        x_sum += x_slope(slope, x, edge)
        t_sum += temperature_slope(t_sums, a, o, m, t, like, mask)
        towards_edge = edge_slope(slope, x, edge)
        store(a.grad_edge_rows, place * a.width + at, towards_edge, mask)
        add_dot(edge_sums, k - begin, towards_edge, mask)
    store(x_sums, column, x_sum, mask)
    store(t_sums, column, t_sum, mask)


@inline
def put_edge_sums(target, a, h, begin, end, sums):
    if target is None:
        return
    for k in range(begin, end):
        put(target, edge_place(a.edge_ids, k) * a.heads + h, get(sums, k - begin))


@inline
def edges_at_a_time(target, begin, end):
    if target is None:
        return max(end - begin, 1)
    return EDGES


def aggregate_backward(block, address):
    """Gradients of the source rows in a block; by_src CSR."""
    a = aggregation(address)
    stride = a.heads * a.width
    t_sums = shift(a.grad_temperature, block * stride)
    clear(t_sums, stride)
    edge_sums = slot_target(a.buffers, block * EDGES, a.grad_edge_numbers)
    bounds = block_bounds(block, a)
    clear_slots(block, a)
    slot = 2 * block
    for place in range(bounds[0], min(bounds[2] + 1, a.rows)):
        begin, end, whole = row_edges(place, bounds, a)
        if not whole and begin >= end:
            continue
        row = row_of(a.row_ids, place)
        x_sums = shift(a.grad_x, row * stride)
        if not whole:
            x_sums = slot_target(a.slots, slot * stride, x_sums)
            put(a.slot_row, slot, place)
            slot += 1
        clear(x_sums, stride)
        step = edges_at_a_time(a.grad_edge_numbers, begin, end)
        for e in range(begin, end, step):
            stop = min(e + step, end)
            for h in range(a.heads):
                clear(edge_sums, EDGES)
                args = (a, row, h, e, stop, x_sums, t_sums, edge_sums)
                for_tiles(backward_tile, a.width, args)
                put_edge_sums(a.grad_edge_numbers, a, h, e, stop, edge_sums)


def merge_aggregate_backward(block, address):
    """Add the parts of each source row, and the temperature's gradients of the blocks."""
    a = aggregation(address)
    stride = a.heads * a.width
    merge_x(a.grad_x, a, stride)
    for other in range(1, a.blocks):
        add_scaled(a.grad_temperature, stride, shift(a.grad_temperature, other * stride), 1.0)


@inline
def merge_x(target, a, stride):
    if target is None:
        return
    add_slots(a, a.slots, target, stride)
