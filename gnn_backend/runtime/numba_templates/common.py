"""What every Numba traversal shares: the partition into blocks, tiles of features, row sums.

Rows are cut into blocks of equal cost by position on the merge path of edges and rows, so a
block may begin and end inside a row. What a block computes for a row it does not hold wholly
goes to one of its two partial slots, and a fixed-order pass adds the slots of each row. Blocks
depend on the graph's size alone: results do not depend on the number of threads.

A tile function takes (at, like, mask, ...): the first feature, a vector whose type gives the
width, and the active lanes (None: all of them).
"""

# mypy: disable-error-code=no-untyped-def

import numpy as np
from numba import njit

from gnn_backend.runtime.cpu_vector import (
    first_lanes,
    get,
    lanes,
    load,
    narrow_zero,
    put,
    shift,
    store,
    wide_zero,
)

FLAGS = {"contract", "nsz", "arcp", "afn"}  # never nnan or ninf; no reassoc: the order is ours
inline = njit(forceinline=True, fastmath=FLAGS)
block_function = njit(nogil=True, fastmath=FLAGS)
PARALLEL = True
entry = njit(parallel=PARALLEL, cache=True, nogil=True, fastmath=FLAGS)


# ------------------------------------------------------------------ partition


@inline
def path_point(indptr, rows, diagonal):
    """Rows finished at a position on the merge path; the rest of the position are edges."""
    low, high = np.int64(0), rows
    while low < high:
        middle = (low + high) // 2
        if np.int64(get(indptr, middle + 1)) + middle + 1 <= diagonal:
            low = middle + 1
        else:
            high = middle
    return low


@inline
def block_bounds(block, blocks, indptr, rows):
    """(first row, first edge, last row, end edge) of a block."""
    length = rows + np.int64(get(indptr, rows))
    start, stop = length * block // blocks, length * (block + 1) // blocks
    first, last = path_point(indptr, rows, start), path_point(indptr, rows, stop)
    return first, start - first, last, stop - last


@inline
def row_edges(row, indptr, bounds):
    """(begin, end, whole) of the edges of a row inside a block."""
    first, first_edge, last, end_edge = bounds
    begin, end = np.int64(get(indptr, row)), np.int64(get(indptr, row + 1))
    whole = (row > first or first_edge == begin) and row < last
    return max(begin, first_edge), min(end, end_edge), whole


# ------------------------------------------------------------------ tiles of features


@inline
def for_tiles(body, width, sample, args):
    """Call a tile function over ``width`` features: wide tiles, then narrow masked ones."""
    wide, narrow = wide_zero(sample), narrow_zero(sample)
    at = np.int64(0)
    while at + lanes(wide) <= width:
        body(at, wide, None, *args)
        at += lanes(wide)
    while at < width:
        body(at, narrow, first_lanes(width - at, narrow), *args)
        at += lanes(narrow)


@inline
def clear(row, n):
    for k in range(n):
        put(row, k, 0.0)


@inline
def scale(row, n, factor):
    for k in range(n):
        put(row, k, get(row, k) * factor)


@inline
def add_scaled(row, n, other, factor):
    for k in range(n):
        put(row, k, get(row, k) + get(other, k) * factor)


@inline
def weighted_sum_tile(at, like, mask, row, weights, n, indices, table, stride):
    """row += sum_k weights[k] * table[indices[k]]."""
    sums = load(row, at, like, mask)
    for k in range(n):
        sums += load(table, np.int64(get(indices, k)) * stride + at, like, mask) * get(weights, k)
    store(row, at, sums, mask)


@inline
def add_slots(slots, slot_sums, slot_row, target, features):
    """Sum the partial rows of each row in the order of its edges."""
    before = np.int64(-1)
    for slot in range(slots):
        row = get(slot_row, slot)
        if row >= 0:
            sums = shift(target, row * features)
            if row != before:
                clear(sums, features)
            add_scaled(sums, features, shift(slot_sums, slot * features), 1.0)
            before = row
