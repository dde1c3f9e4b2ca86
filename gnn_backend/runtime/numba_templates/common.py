"""What every Numba traversal shares: arguments, the partition into blocks, tiles of features.

A kernel is a C function (block, address of the arguments). Rows are cut into blocks of equal
cost by position on the merge path of edges and rows, so a block may begin and end inside a row.
What a block computes for a row it does not hold wholly goes to one of its two partial slots, and
a fixed-order pass adds the slots of each row. Blocks depend on the graph's size alone: results
do not depend on the number of threads.

A tile function takes (at, like, mask, ...): the first feature, a vector whose type gives the
width, and the active lanes (None: all of them).
"""

# mypy: disable-error-code=no-untyped-def

from collections import namedtuple

import numpy as np
from numba import njit, types

from gnn_backend.runtime.cpu_memory import field, get, load, prefetch, put, shift, store
from gnn_backend.runtime.cpu_vector import first_lanes, lanes, zeros

# variant: replaced when composed
REAL = types.float32  # what is computed in
OFFSET = types.int32  # of indptr
WIDE = 4  # vector registers of a wide tile
GRAD_QUERY = GRAD_PARAM = GRAD_KEY = GRAD_VALUE = types.float32  # None: not needed
# end of variant

NEIGHBOR = types.int32
SLOT_ROW = types.int64
INTEGER = 0
FLAGS = {"contract", "nsz", "arcp", "afn"}  # never nnan or ninf; no reassoc: the order is ours
AHEAD = 8  # neighbours between the one in use and the one being fetched into the cache
OPTIONS = {"fastmath": FLAGS, "error_model": "numpy"}  # 1 / 0 is inf, not an exception
inline = njit(forceinline=True, **OPTIONS)  # type: ignore[call-overload]

Arguments = namedtuple(
    "Arguments",
    "indptr indices key query param value grad_out stats out lse "
    "grad_query grad_param grad_key grad_value "
    "slot_sums slot_more slot_row buffers scalars "
    "rows edges heads key_width width blocks buffer_stride",
)


@inline
def arguments(address):
    """Read the arguments of a kernel, in the order of ``Arguments``."""
    scalars = field(address, 18, REAL)
    return Arguments(
        field(address, 0, OFFSET),
        field(address, 1, NEIGHBOR),
        field(address, 2, REAL),
        field(address, 3, REAL),
        field(address, 4, REAL),
        field(address, 5, REAL),
        field(address, 6, REAL),
        field(address, 7, REAL),
        field(address, 8, REAL),
        field(address, 9, REAL),
        field(address, 10, GRAD_QUERY),
        field(address, 11, GRAD_PARAM),
        field(address, 12, GRAD_KEY),
        field(address, 13, GRAD_VALUE),
        field(address, 14, REAL),
        field(address, 15, REAL),
        field(address, 16, SLOT_ROW),
        field(address, 17, REAL),
        (get(scalars, 0), get(scalars, 1), get(scalars, 2), get(scalars, 3)),
        field(address, 19, INTEGER),
        field(address, 20, INTEGER),
        field(address, 21, INTEGER),
        field(address, 22, INTEGER),
        field(address, 23, INTEGER),
        field(address, 24, INTEGER),
        field(address, 25, INTEGER),
    )


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
def block_bounds(block, a):
    """(first row, first edge, last row, end edge) of a block."""
    length = a.rows + a.edges
    start, stop = length * block // a.blocks, length * (block + 1) // a.blocks
    first, last = path_point(a.indptr, a.rows, start), path_point(a.indptr, a.rows, stop)
    return first, start - first, last, stop - last


@inline
def row_edges(row, bounds, a):
    """(begin, end, whole) of the edges of a row inside a block."""
    first, first_edge, last, end_edge = bounds
    begin, end = np.int64(get(a.indptr, row)), np.int64(get(a.indptr, row + 1))
    whole = (row > first or first_edge == begin) and row < last
    return max(begin, first_edge), min(end, end_edge), whole


@inline
def clear_slots(block, a):
    put(a.slot_row, 2 * block, -1)
    put(a.slot_row, 2 * block + 1, -1)


@inline
def slot_target(slots, offset, target):
    """The partial row at ``offset`` instead of the row itself; None if that is not needed."""
    if target is None:
        return target
    return shift(slots, offset)


@inline
def add_slots(a, slot_sums, target, features):
    """Sum the partial rows of each row in the order of its edges."""
    before = np.int64(-1)
    for slot in range(2 * a.blocks):
        row = get(a.slot_row, slot)
        if row >= 0:
            sums = shift(target, row * features)
            if row != before:
                clear(sums, features)
            add_scaled(sums, features, shift(slot_sums, slot * features), 1.0)
            before = row


# ------------------------------------------------------------------ features


@inline
def for_tiles(body, width, args):
    """Call a tile function over ``width`` features: wide tiles, then narrow masked ones."""
    wide, narrow = zeros(REAL, WIDE), zeros(REAL, 1)
    at = np.int64(0)
    if WIDE > 1:
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
    if row is None:
        return
    for k in range(n):
        put(row, k, get(row, k) + get(other, k) * factor)


@inline
def neighbor(nbrs, k, stride):
    """Where the row of neighbour ``k`` begins in a table."""
    return np.int64(get(nbrs, k)) * stride


@inline
def fetch_ahead(table, at, like, nbrs, k, reach, stride):
    """Ask for the tile that a later neighbour needs; ``reach`` is the last index there is."""
    prefetch(table, neighbor(nbrs, min(k + AHEAD, reach), stride) + at, like)


@inline
def weighted_sum_tile(at, like, mask, row, weights, n, nbrs, table, stride):
    """row += sum_k weights[k] * table[neighbour k]."""
    sums = load(row, at, like, mask)
    for k in range(n):
        sums += load(table, neighbor(nbrs, k, stride) + at, like, mask) * get(weights, k)
    store(row, at, sums, mask)
