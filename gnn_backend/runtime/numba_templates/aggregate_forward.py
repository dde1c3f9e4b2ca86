"""Reductions over the in-edges of every row, all that are wanted in one pass."""

# mypy: disable-error-code=no-untyped-def

from collections import namedtuple

import numpy as np

from gnn_backend.runtime.cpu_memory import get, load, optional, prefetch, put, shift, store
from gnn_backend.runtime.cpu_vector import exponential, logarithm, where
from gnn_backend.runtime.numba_templates.aggregate_arguments import (
    MAX,
    MAX_FIRST,
    MAX_TIES,
    MIN,
    MIN_FIRST,
    MIN_TIES,
    MUL,
    MUL_REST,
    SOFTMAX,
    SQUARE,
    SUM,
    aggregation,
    compared,
    edge_place,
    edge_value,
)
from gnn_backend.runtime.numba_templates.aggregate_extremes import (
    finish_extreme,
    no_extreme,
    settle_extreme,
    take_extreme,
)
from gnn_backend.runtime.numba_templates.common import (
    AHEAD,
    block_bounds,
    clear_slots,
    for_tiles,
    inline,
    neighbor,
    row_edges,
    row_of,
)
from gnn_backend.runtime.numba_templates.message_copy import message

PARTS = 12  # tables of partial rows: those of ``store_partial``
FIRST_PARTS = 2

#: ``product`` is (of all, of those that are not 0, number of zeros); ``soft`` (top, weight, sum).
Sums = namedtuple("Sums", "sum square most least product soft")


@inline
def message_tile(a, k, h, at, like, mask):
    """The part of the message of the edge at position ``k``."""
    column, stride = h * a.width + at, a.heads * a.width
    x = load(a.x, neighbor(a.indices, k, stride) + column, like, mask)
    place = edge_place(a.edge_ids, k) * a.heads + h
    return message(x, edge_value(a, place, at, like, mask))


@inline
def fetch_message(a, k, h, at, like):
    """Ask for what a later message is made of."""
    ahead = min(k + AHEAD, a.edges - 1)
    column, stride = h * a.width + at, a.heads * a.width
    prefetch(a.x, neighbor(a.indices, ahead, stride) + column, like)
    fetch_edge(a.edge_ids, a.edge_rows, ahead, a.width, at, like)


@inline
def fetch_edge(edge_ids, rows, ahead, width, at, like):
    if edge_ids is None or rows is None:
        return  # in order, or a number
    prefetch(rows, np.int64(get(edge_ids, ahead)) * width + at, like)


@inline
def add_to(asked, total, value):
    """``total + value``, where that is asked for; what is not is not even compiled."""
    if asked is None:
        return total
    return total + value


@inline
def take_if(asked, state, value, ties, first, like):
    if asked is None:
        return state
    return take_extreme(state, (value, ties, first), like)


@inline
def settle_if(asked, state, begin, like):
    if asked is None:
        return state
    return settle_extreme(state, begin, like)


@inline
def multiply_if(asked, product, m, like):
    if asked is None:
        return product
    zero = m == 0.0
    return product[0] * m, product[1] * where(zero, 1.0, m), product[2] + where(zero, 1.0, like)


@inline
def sum_messages(a, h, begin, end, at, like, mask):
    """All sums of the messages begin..end."""
    total, square = like, like
    most, least = no_extreme(like), no_extreme(like)
    product = like + 1.0, like + 1.0, like
    for k in range(begin, end):
        fetch_message(a, k, h, at, like)
        m = message_tile(a, k, h, at, like, mask)
        total = add_to(a.sum, total, m)
        square = add_to(a.square, square, m * m)
        known = compared(m)
        most = take_if(a.max, most, known, 1.0, k, like)
        least = take_if(a.min, least, known * -1.0, 1.0, k, like)
        product = multiply_if(a.mul, product, m, like)
    most, least = settle_if(a.max, most, begin, like), settle_if(a.min, least, begin, like)
    soft = softmax_messages(a.softmax, a, h, begin, end, at, like, mask)
    return Sums(total, square, most, least, product, soft)


@inline
def larger(value, best):
    """The larger of both; NaN if one is."""
    return where(value == value, where(value > best, value, best), value)


@inline
def base_of_tile(top, like):
    """What is subtracted in exponents: the maximum, or 0 where that is -inf."""
    return where(top == -np.inf, like, top)


@inline
def softmax_messages(asked, a, h, begin, end, at, like, mask):
    """(maximum of t * m, sum of exp(t * m - maximum), sum of that times m), the row read twice."""
    if asked is None:
        return like, like, like
    t = load(a.temperature, h * a.width + at, like, mask)
    top, weight, total = like - np.inf, like, like
    for k in range(begin, end):
        top = larger(message_tile(a, k, h, at, like, mask) * t, top)
    base = base_of_tile(top, like)
    for k in range(begin, end):
        m = message_tile(a, k, h, at, like, mask)
        e = exponential(m * t - base)
        weight += e
        total += e * m
    return top, weight, total


@inline
def store_row(a, offset, begin, end, sums, like, mask):
    """Write the results of a row, which ``sums`` covers wholly."""
    store(a.sum, offset, sums.sum, mask)
    store(a.square, offset, sums.square, mask)
    bounds = begin, end
    store_best(a.max, a.max_ties, a.max_first, 1.0, offset, bounds, sums.most, like, mask)
    store_best(a.min, a.min_ties, a.min_first, -1.0, offset, bounds, sums.least, like, mask)
    store_product(a.mul, a.mul_rest, offset, sums.product, mask)
    store_softmax(a.softmax, a.softmax_lse, offset, sums.soft, begin == end, like, mask)


@inline
def store_best(target, ties_target, first_target, sign, offset, bounds, state, like, mask):
    if target is None:
        return
    best, ties, first = finish_extreme(state, bounds[0], bounds[1], like)
    store(target, offset, best * sign, mask)
    store(ties_target, offset, ties, mask)
    store(first_target, offset, first, mask)


@inline
def store_product(target, rest_target, offset, product, mask):
    if target is None:
        return
    store(target, offset, product[0], mask)
    store(rest_target, offset, where(product[2] == 1.0, product[1], product[0]), mask)


@inline
def store_softmax(target, lse_target, offset, soft, empty, like, mask):
    if target is None:
        return
    top, weight, total = soft
    store(target, offset, like if empty else total / weight, mask)
    store(lse_target, offset, top + logarithm(weight), mask)


@inline
def store_partial(a, offset, step, sums, mask):
    """Write the sums of a part of a row: ``step`` numbers between one table and the next."""
    slots, firsts = a.slots, a.first_slots
    store(optional(slots, SUM), offset, sums.sum, mask)
    store(optional(slots, SQUARE), offset + step, sums.square, mask)
    store(optional(slots, MAX), offset + 2 * step, sums.most[0], mask)
    store(optional(slots, MAX_TIES), offset + 3 * step, sums.most[1], mask)
    store(optional(firsts, MAX_FIRST), offset, sums.most[2], mask)
    store(optional(slots, MIN), offset + 4 * step, sums.least[0], mask)
    store(optional(slots, MIN_TIES), offset + 5 * step, sums.least[1], mask)
    store(optional(firsts, MIN_FIRST), offset + step, sums.least[2], mask)
    store(optional(slots, MUL), offset + 6 * step, sums.product[0], mask)
    store(optional(slots, MUL_REST), offset + 7 * step, sums.product[1], mask)
    store(optional(slots, MUL_REST), offset + 8 * step, sums.product[2], mask)
    store(optional(slots, SOFTMAX), offset + 9 * step, sums.soft[0], mask)
    store(optional(slots, SOFTMAX), offset + 10 * step, sums.soft[1], mask)
    store(optional(slots, SOFTMAX), offset + 11 * step, sums.soft[2], mask)


@inline
def forward_tile(at, like, mask, a, row, h, begin, end, slot):
    """One tile of a row: its results, or its part for a slot (-1: the row is whole)."""
    sums = sum_messages(a, h, begin, end, at, like, mask)
    stride, column = a.heads * a.width, h * a.width + at
    if slot < 0:
        store_row(a, row * stride + column, begin, end, sums, like, mask)
    else:
        store_partial(a, slot * stride + column, 2 * a.blocks * stride, sums, mask)


def aggregate_forward(block, address):
    """The reductions of the rows in a block; by_dst CSR."""
    a = aggregation(address)
    bounds = block_bounds(block, a)
    clear_slots(block, a)
    slot = 2 * block
    for place in range(bounds[0], min(bounds[2] + 1, a.rows)):
        begin, end, whole = row_edges(place, bounds, a)
        if not whole and begin >= end:
            continue  # another block has the row's edges
        row, target = row_of(a.row_ids, place), np.int64(-1)
        if not whole:
            target = slot
            put(a.slot_row, slot, place)
            slot += 1
        for h in range(a.heads):
            for_tiles(forward_tile, a.width, (a, row, h, begin, end, target))


@inline
def merge_softmax(slots, offset, step, from_slot, stop, a, stride, like, mask):
    """Combine partial softmaxes, each scaled to the largest of their maxima."""
    top, weight, total = like - np.inf, like, like
    if slots is None:
        return top, weight, total
    for s in range(from_slot, stop):
        if get(a.slot_row, s) >= 0:
            top = larger(load(slots, s * stride + offset, like, mask), top)
    base = base_of_tile(top, like)
    for s in range(from_slot, stop):
        if get(a.slot_row, s) >= 0:
            at = s * stride + offset
            factor = exponential(load(slots, at, like, mask) - base)
            weight += load(slots, at + step, like, mask) * factor
            total += load(slots, at + 2 * step, like, mask) * factor
    return top, weight, total


@inline
def merge_best(best, ties, firsts, offset, state, like, mask):
    """Take in the part of a row at ``offset`` of the tables."""
    if best is None:
        return state
    value, count = load(best, offset, like, mask), load(ties, offset, like, mask)
    return take_extreme(state, (value, count, load(firsts, offset, state[2], mask)), like)


@inline
def merge_product(products, rests, offset, step, product, like, mask):
    if products is None:
        return product
    return (
        product[0] * load(products, offset, like, mask),
        product[1] * load(rests, offset + step, like, mask),
        product[2] + load(rests, offset + 2 * step, like, mask),
    )


@inline
def merge_tile(at, like, mask, a, place, slot, stop):
    """One tile of a row whose parts are in slots slot..stop."""
    stride = a.heads * a.width
    step, slots, firsts = 2 * a.blocks * stride, a.slots, a.first_slots
    most_tables = (
        shift(optional(slots, MAX), 2 * step),
        shift(optional(slots, MAX_TIES), 3 * step),
        optional(firsts, MAX_FIRST),
    )
    least_tables = (
        shift(optional(slots, MIN), 4 * step),
        shift(optional(slots, MIN_TIES), 5 * step),
        shift(optional(firsts, MIN_FIRST), step),
    )
    products, rests = optional(slots, MUL), optional(slots, MUL_REST)
    total, square = like, like
    most, least, product = no_extreme(like), no_extreme(like), (like + 1.0, like + 1.0, like)
    for s in range(slot, stop):
        if get(a.slot_row, s) >= 0:
            o = s * stride + at
            total += load(optional(slots, SUM), o, like, mask)
            square += load(optional(slots, SQUARE), o + step, like, mask)
            most = merge_best(*most_tables, o, most, like, mask)
            least = merge_best(*least_tables, o, least, like, mask)
            product = merge_product(products, rests, o + 6 * step, step, product, like, mask)
    soft = merge_softmax(
        optional(slots, SOFTMAX), 9 * step + at, step, slot, stop, a, stride, like, mask
    )
    begin, end = np.int64(get(a.indptr, place)), np.int64(get(a.indptr, place + 1))
    row = row_of(a.row_ids, place)
    sums = Sums(total, square, most, least, product, soft)
    store_row(a, row * stride + at, begin, end, sums, like, mask)


def merge_aggregate_forward(block, address):
    """Combine the parts of each row in the order of its edges."""
    a = aggregation(address)
    slots = 2 * a.blocks
    slot = np.int64(0)
    while slot < slots:
        place = get(a.slot_row, slot)
        stop = slot + 1
        while stop < slots and (get(a.slot_row, stop) == place or get(a.slot_row, stop) < 0):
            stop += 1
        if place >= 0:
            for_tiles(merge_tile, a.heads * a.width, (a, place, slot, stop))
        slot = stop
