"""Softmax-weighted sum: out[i] = sum_j softmax_j(logit(i, j)) * value[j], one pass over edges."""

# mypy: disable-error-code=no-untyped-def

import math

import numpy as np
from numba import prange

from gnn_backend.runtime.cpu_vector import (
    get,
    narrow_zero,
    pointer,
    put,
    shift,
    total,
)
from gnn_backend.runtime.numba_templates.common import (
    add_scaled,
    block_bounds,
    block_function,
    clear,
    entry,
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
def forward_edges(begin, end, indices, tables, query, scalars, sums, state, buffer, sample, shape):
    """Softmax over edges begin..end of one row: sums [H, D]; state [H, 2] of (maximum, weight)."""
    key, param, value = tables
    heads, key_width, width = shape
    clear(sums, heads * width)
    for h in range(heads):
        put(state, 2 * h, -np.inf)
        put(state, 2 * h + 1, 0.0)
    for e in range(begin, end, EDGES):
        n = min(end - e, EDGES)
        nbrs = shift(indices, e)
        for h in range(heads):
            at = h * key_width
            clear(buffer, n)
            for_tiles(
                logits_tile,
                key_width,
                sample,
                (
                    buffer,
                    n,
                    nbrs,
                    shift(key, at),
                    heads * key_width,
                    shift(query, at),
                    shift(param, at),
                    scalars,
                    None,
                ),
            )
            old = get(state, 2 * h)
            top = largest(buffer, n, old)
            base = base_of(top, sample)
            weight = exponentials(buffer, n, sample, base)
            row = shift(sums, h * width)
            if top > old and e > begin:
                factor = math.exp(old - base)
                weight += get(state, 2 * h + 1) * factor
                scale(row, width, factor)
            else:
                weight += get(state, 2 * h + 1)
            put(state, 2 * h, top)
            put(state, 2 * h + 1, weight)
            for_tiles(
                weighted_sum_tile,
                width,
                sample,
                (row, buffer, n, nbrs, shift(value, h * width), heads * width),
            )


@inline
def finish_softmax(row, lse, state, sample, shape, empty):
    """Normalise the sums of a row in place and write its log-sum-exp."""
    heads, _, width = shape
    for h in range(heads):
        top, weight = get(state, 2 * h), get(state, 2 * h + 1)
        put(lse, h, top + math.log(weight) if weight > 0.0 else top - weight)
        if not empty:
            scale(shift(row, h * width), width, 1.0 / weight)


@block_function
def forward_block(
    block, blocks, indptr, indices, tables, query, scalars, out, lse, partial, buffers, size
):
    rows, heads, key_width, width = size
    shape = heads, key_width, width
    slot_sums, slot_state, slot_row = partial
    buffer = shift(buffers, block * (2 * EDGES + 2 * heads))
    state = shift(buffer, 2 * EDGES)
    bounds = block_bounds(block, blocks, indptr, rows)
    put(slot_row, 2 * block, -1)
    put(slot_row, 2 * block + 1, -1)
    slot = 2 * block
    for row in range(bounds[0], min(bounds[2] + 1, rows)):
        begin, end, whole = row_edges(row, indptr, bounds)
        sums = shift(out, row * heads * width)
        if not whole:
            if row == bounds[2] and begin == end:
                break
            sums = shift(slot_sums, slot * heads * width)
            state = shift(slot_state, slot * heads * 2)
        q = shift(query, row * heads * key_width)
        forward_edges(begin, end, indices, tables, q, scalars, sums, state, buffer, out, shape)
        if whole:
            finish_softmax(sums, shift(lse, row * heads), state, out, shape, begin == end)
        else:
            put(slot_row, slot, row)
            slot += 1
            state = shift(buffer, 2 * EDGES)


@block_function
def merge_forward(slots, partial, out, lse, state, size):
    """Combine the partial softmaxes of each row in the order of its edges."""
    _, heads, key_width, width = size
    shape = heads, key_width, width
    slot_sums, slot_state, slot_row = partial
    slot = np.int64(0)
    while slot < slots:
        row = get(slot_row, slot)
        stop = slot + 1
        while stop < slots and (get(slot_row, stop) == row or get(slot_row, stop) < 0):
            stop += 1
        if row >= 0:
            target = shift(out, row * heads * width)
            clear(target, heads * width)
            for h in range(heads):
                top = get(slot_state, 2 * (slot * heads + h))
                for s in range(slot, stop):
                    other = get(slot_state, 2 * (s * heads + h))
                    top = other if get(slot_row, s) >= 0 and other > top else top
                base = base_of(top, out)
                weight = total(narrow_zero(out))
                for s in range(slot, stop):
                    if get(slot_row, s) >= 0:
                        at = s * heads + h
                        factor = math.exp(get(slot_state, 2 * at) - base)
                        weight += get(slot_state, 2 * at + 1) * factor
                        sums = shift(slot_sums, at * width)
                        add_scaled(shift(target, h * width), width, sums, factor)
                put(state, 2 * h, top)
                put(state, 2 * h + 1, weight)
            finish_softmax(target, shift(lse, row * heads), state, out, shape, False)
        slot = stop


@entry
def forward(
    blocks, indptr, indices, key, query, param, value, scalars, out, lse, partial, buffers, size
):
    """Out [rows, H, D] and log-sum-exp [rows, H] of every row; by_dst CSR."""
    if VALUE_IS_KEY:
        value = key
    for block in prange(blocks):
        forward_block(
            block,
            blocks,
            pointer(indptr),
            pointer(indices),
            (pointer(key), pointer(param), pointer(value)),
            pointer(query),
            scalars,
            pointer(out),
            pointer(lse),
            (pointer(partial[0]), pointer(partial[1]), pointer(partial[2])),
            pointer(buffers),
            size,
        )
    merge_forward(
        2 * blocks,
        (pointer(partial[0]), pointer(partial[1]), pointer(partial[2])),
        pointer(out),
        pointer(lse),
        pointer(buffers),
        size,
    )
