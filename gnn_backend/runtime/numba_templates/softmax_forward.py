"""Softmax-weighted sum: out[i] = sum_j softmax_j(logit(i, j)) * value[j], one pass over edges."""

# mypy: disable-error-code=no-untyped-def

import math

import numpy as np

from gnn_backend.runtime.cpu_memory import get, put, shift
from gnn_backend.runtime.cpu_vector import total, zeros
from gnn_backend.runtime.numba_templates.common import (
    REAL,
    add_scaled,
    arguments,
    block_bounds,
    clear,
    clear_slots,
    for_tiles,
    inline,
    row_edges,
    scale,
    weighted_sum_tile,
)
from gnn_backend.runtime.numba_templates.gatv2 import VALUE_IS_KEY
from gnn_backend.runtime.numba_templates.softmax_logits import (
    EDGES,
    base_of,
    exponentials,
    largest,
    logits_tile,
)


@inline
def forward_edges(a, row, begin, end, sums, state, logits):
    """Softmax over edges begin..end of a row: sums [H, D]; state [H, 2] of (maximum, weight)."""
    key_stride, stride = a.heads * a.key_width, a.heads * a.width
    value = a.key if VALUE_IS_KEY else a.value
    query = shift(a.query, row * key_stride)
    clear(sums, stride)
    for h in range(a.heads):
        put(state, 2 * h, -np.inf)
        put(state, 2 * h + 1, 0.0)
    for e in range(begin, end, EDGES):
        n = min(end - e, EDGES)
        nbrs, reach = shift(a.indices, e), a.edges - e - 1
        for h in range(a.heads):
            at = h * a.key_width
            clear(logits, n)
            logit_args = (shift(a.key, at), shift(query, at), shift(a.param, at), a.scalars, None)
            args = (logits, n, nbrs, reach, key_stride, logit_args)
            for_tiles(logits_tile, a.key_width, args)
            old = get(state, 2 * h)
            top = largest(logits, n, old)
            base = base_of(top)
            weight = exponentials(logits, n, base)
            head_sums = shift(sums, h * a.width)
            factor = math.exp(old - base) if top > old and e > begin else 1.0
            if factor != 1.0:
                scale(head_sums, a.width, factor)
            put(state, 2 * h, top)
            put(state, 2 * h + 1, weight + get(state, 2 * h + 1) * factor)
            sum_args = (head_sums, logits, n, nbrs, shift(value, h * a.width), stride)
            for_tiles(weighted_sum_tile, a.width, sum_args)


@inline
def finish_softmax(a, row, sums, state, empty):
    """Normalise the sums of a row in place and write its log-sum-exp."""
    for h in range(a.heads):
        top, weight = get(state, 2 * h), get(state, 2 * h + 1)
        # A weight of 0 is an empty row or one whose logits are all -inf; both have lse -inf.
        lse = top + math.log(weight) if weight > 0.0 else top - weight
        put(a.lse, row * a.heads + h, lse)
        if not empty:
            scale(shift(sums, h * a.width), a.width, 1.0 / weight)


def forward(block, address):
    """Out [rows, H, D] and log-sum-exp [rows, H] of the rows in a block; by_dst CSR."""
    a = arguments(address)
    logits = shift(a.buffers, block * a.buffer_stride)
    stride = a.heads * a.width
    bounds = block_bounds(block, a)
    clear_slots(block, a)
    slot = 2 * block
    for row in range(bounds[0], min(bounds[2] + 1, a.rows)):
        begin, end, whole = row_edges(row, bounds, a)
        if row == bounds[2] and begin == end:
            break
        sums, state = shift(a.out, row * stride), shift(logits, EDGES)
        if not whole:
            sums = shift(a.slot_sums, slot * stride)
            state = shift(a.slot_more, slot * a.heads * 2)
            put(a.slot_row, slot, row)
            slot += 1
        forward_edges(a, row, begin, end, sums, state, logits)
        if whole:
            finish_softmax(a, row, sums, state, begin == end)


@inline
def merge_head(a, slot, stop, h, sums, state):
    """Combine the partial softmaxes of one head in slots slot..stop, all of one row."""
    top = get(a.slot_more, 2 * (slot * a.heads + h))
    for s in range(slot, stop):
        other = get(a.slot_more, 2 * (s * a.heads + h))
        top = other if get(a.slot_row, s) >= 0 and other > top else top
    base = base_of(top)
    weight = total(zeros(REAL, 1))
    clear(sums, a.width)
    for s in range(slot, stop):
        if get(a.slot_row, s) >= 0:
            at = s * a.heads + h
            factor = math.exp(get(a.slot_more, 2 * at) - base)
            weight += get(a.slot_more, 2 * at + 1) * factor
            add_scaled(sums, a.width, shift(a.slot_sums, at * a.width), factor)
    put(state, 2 * h, top)
    put(state, 2 * h + 1, weight)


def merge_forward(block, address):
    """Combine the partial softmaxes of each row in the order of its edges."""
    a = arguments(address)
    slots = 2 * a.blocks
    slot = np.int64(0)
    while slot < slots:
        row = get(a.slot_row, slot)
        stop = slot + 1
        while stop < slots and (get(a.slot_row, stop) == row or get(a.slot_row, stop) < 0):
            stop += 1
        if row >= 0:
            sums = shift(a.out, row * a.heads * a.width)
            for h in range(a.heads):
                merge_head(a, slot, stop, h, shift(sums, h * a.width), a.buffers)
            finish_softmax(a, row, sums, a.buffers, False)
        slot = stop
