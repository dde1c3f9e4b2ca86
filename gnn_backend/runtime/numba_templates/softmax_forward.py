"""Softmax-weighted sum: out[i] = sum_j softmax_j(logit(i, j)) * value[j], one pass over edges."""

# mypy: disable-error-code=no-untyped-def

import math

import numpy as np

from gnn_backend.runtime.cpu_memory import get, put, shift
from gnn_backend.runtime.cpu_vector import total, zeros
from gnn_backend.runtime.numba_templates.common import (
    DROPOUT,
    REAL,
    add_scaled,
    arguments,
    block_bounds,
    clear,
    clear_slots,
    for_tiles,
    inline,
    row_edges,
    row_of,
    scale,
    slot_target,
    weighted_sum_tile,
)
from gnn_backend.runtime.numba_templates.gatv2 import VALUE_IS_KEY
from gnn_backend.runtime.numba_templates.softmax_edges import (
    EDGES,
    chunk_at,
    keep_factors,
    multiply,
    weighted_edges_tile,
)
from gnn_backend.runtime.numba_templates.softmax_logits import (
    asked_features,
    base_of,
    compute_logits,
    exponentials,
    largest,
    row_sides,
)

FETCH_VALUE = None if VALUE_IS_KEY else True
KEEP_AT, STATE_AT = 2 * EDGES, 7 * EDGES  # in the buffer of a block


@inline
def forward_edges(a, row, begin, end, sums, edge_sums, state, logits):
    """Softmax over edges begin..end of a row: sums [H, D]; state [H, 2] of (maximum, weight)."""
    bias, keep_buffer = shift(logits, EDGES), shift(logits, KEEP_AT)
    clear(sums, a.heads * a.width)
    clear(edge_sums, a.heads * a.feature_width)
    for h in range(a.heads):
        put(state, 2 * h, -np.inf)
        put(state, 2 * h + 1, 0.0)
    for e in range(begin, end, EDGES):
        chunk = chunk_at(a, e, end)
        for h in range(a.heads):
            side, edge_side = row_sides(a, row, h)
            compute_logits(a, logits, bias, chunk, h, side, edge_side)
            old = get(state, 2 * h)
            top = largest(logits, chunk.n, old)
            base = base_of(top)
            weight = exponentials(logits, chunk.n, base)
            factor = math.exp(old - base) if top > old and e > begin else 1.0
            put(state, 2 * h, top)
            put(state, 2 * h + 1, weight + get(state, 2 * h + 1) * factor)
            multiply(logits, chunk.n, keep_factors(DROPOUT, a, chunk, h, keep_buffer))
            add_values(a, chunk, h, logits, factor, sums)
            add_features(a, chunk, h, logits, factor, edge_sums)


@inline
def add_values(a, chunk, h, weights, factor, sums):
    """sums = sums * factor + the weighted values of a chunk, of one head."""
    value, stride = a.key if VALUE_IS_KEY else a.value, a.heads * a.width
    head_sums = shift(sums, h * a.width)
    if factor != 1.0:
        scale(head_sums, a.width, factor)
    args = (head_sums, weights, chunk, shift(value, h * a.width), stride, FETCH_VALUE)
    for_tiles(weighted_sum_tile, a.width, args)


@inline
def add_features(a, chunk, h, weights, factor, sums):
    """The same of the features of the edges, where they are aggregated."""
    if sums is None:
        return
    head_sums = shift(sums, h * a.feature_width)
    if factor != 1.0:
        scale(head_sums, a.feature_width, factor)
    features = asked_features(a, sums, h)
    args = (head_sums, weights, chunk, features, a.feature_stride)
    for_tiles(weighted_edges_tile, a.feature_width, args)


@inline
def finish_softmax(a, row, sums, edge_sums, state, empty):
    """Normalise the sums of a row in place and write its log-sum-exp."""
    for h in range(a.heads):
        top, weight = get(state, 2 * h), get(state, 2 * h + 1)
        # A weight of 0 is an empty row or one whose logits are all -inf; both have lse -inf.
        lse = top + math.log(weight) if weight > 0.0 else top - weight
        put(a.lse, row * a.heads + h, lse)
        if not empty:
            scale(shift(sums, h * a.width), a.width, 1.0 / weight)
            scale(shift(edge_sums, h * a.feature_width), a.feature_width, 1.0 / weight)


def forward(block, address):
    """Out [rows, H, D] and log-sum-exp [rows, H] of the rows in a block; by_dst CSR."""
    a = arguments(address)
    logits = shift(a.buffers, block * a.buffer_stride)
    stride, edge_stride = a.heads * a.width, a.heads * a.feature_width
    bounds = block_bounds(block, a)
    clear_slots(block, a)
    slot = 2 * block
    for place in range(bounds[0], min(bounds[2] + 1, a.rows)):
        begin, end, whole = row_edges(place, bounds, a)
        if place == bounds[2] and begin == end:
            break
        row = row_of(a.row_ids, place)
        sums, state = shift(a.out, row * stride), shift(logits, STATE_AT)
        edge_sums = shift(a.out_edge, row * edge_stride)
        if not whole:
            sums = shift(a.slot_sums, slot * stride)
            edge_sums = slot_target(a.slot_edge, slot * edge_stride, edge_sums)
            state = shift(a.slot_more, slot * a.heads * 2)
            put(a.slot_row, slot, place)
            slot += 1
        forward_edges(a, row, begin, end, sums, edge_sums, state, logits)
        if whole:
            finish_softmax(a, row, sums, edge_sums, state, begin == end)


@inline
def merge_sums(a, slot, stop, h, base, slot_sums, target, width):
    """Add the partial sums of one head in slots slot..stop, each scaled to the maximum ``base``."""
    if target is None:
        return
    clear(target, width)
    for s in range(slot, stop):
        if get(a.slot_row, s) >= 0:
            at = s * a.heads + h
            factor = math.exp(get(a.slot_more, 2 * at) - base)
            add_scaled(target, width, shift(slot_sums, at * width), factor)


@inline
def merge_head(a, slot, stop, h, sums, edge_sums, state):
    """Combine the partial softmaxes of one head in slots slot..stop, all of one row."""
    top = get(a.slot_more, 2 * (slot * a.heads + h))
    for s in range(slot, stop):
        other = get(a.slot_more, 2 * (s * a.heads + h))
        top = other if get(a.slot_row, s) >= 0 and other > top else top
    base = base_of(top)
    weight = total(zeros(REAL, 1))
    for s in range(slot, stop):
        if get(a.slot_row, s) >= 0:
            at = 2 * (s * a.heads + h)
            weight += get(a.slot_more, at + 1) * math.exp(get(a.slot_more, at) - base)
    merge_sums(a, slot, stop, h, base, a.slot_sums, sums, a.width)
    merge_sums(a, slot, stop, h, base, a.slot_edge, edge_sums, a.feature_width)
    put(state, 2 * h, top)
    put(state, 2 * h + 1, weight)


def merge_forward(block, address):
    """Combine the partial softmaxes of each row in the order of its edges."""
    a = arguments(address)
    slots = 2 * a.blocks
    slot = np.int64(0)
    while slot < slots:
        place = get(a.slot_row, slot)
        stop = slot + 1
        while stop < slots and (get(a.slot_row, stop) == place or get(a.slot_row, stop) < 0):
            stop += 1
        if place >= 0:
            row = row_of(a.row_ids, place)
            sums = shift(a.out, row * a.heads * a.width)
            edge_sums = shift(a.out_edge, row * a.heads * a.feature_width)
            for h in range(a.heads):
                head_sums = shift(sums, h * a.width)
                head_edge_sums = shift(edge_sums, h * a.feature_width)
                merge_head(a, slot, stop, h, head_sums, head_edge_sums, a.buffers)
            finish_softmax(a, row, sums, edge_sums, a.buffers, False)
        slot = stop
