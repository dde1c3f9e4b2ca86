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
EDGE_ID = None  # of edge_ids; None: edges are in the caller's order, or nothing asks for it
ROW_ID = None  # of row_ids; None: rows are laid out by number
WIDE = 4  # vector registers of a wide tile
# Optional arguments; None: not given, or not needed.
EDGE = EDGE_BIAS = EDGE_FEATURES = EDGE_QUERY = None
KEY_TERM = QUERY_TERM = None
OUT_EDGE = GRAD_OUT_EDGE = ATTENTION = GRAD_ATTENTION = DROPOUT = None
GRAD_QUERY = GRAD_PARAM = GRAD_KEY = GRAD_VALUE = types.float32
GRAD_EDGE = GRAD_EDGE_BIAS = GRAD_EDGE_FEATURES = GRAD_EDGE_QUERY = None
GRAD_KEY_TERM = GRAD_QUERY_TERM = None
# end of variant

NEIGHBOR = types.int32
SLOT_ROW = types.int64
INTEGER = 0
FLAGS = {"contract", "nsz", "arcp", "afn"}  # never nnan or ninf; no reassoc: the order is ours
AHEAD = 8  # neighbours between the one in use and the one being fetched into the cache
OPTIONS = {"fastmath": FLAGS, "error_model": "numpy"}  # 1 / 0 is inf, not an exception
# Nothing calls these from Python; their wrappers would take a third of the compilation.
_BARE = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inline = njit(**_BARE, **OPTIONS)  # type: ignore[call-overload]

Arguments = namedtuple(
    "Arguments",
    "indptr indices edge_ids key query param value out lse grad_out stats edge edge_bias "
    "edge_features edge_query out_edge grad_out_edge attention grad_attention grad_query "
    "grad_param grad_key grad_value grad_edge grad_edge_bias grad_edge_features "
    "grad_edge_query slot_sums slot_more slot_edge slot_row buffers scalars rows edges "
    "heads key_width width blocks buffer_stride feature_width feature_stride feature_head "
    "dropout_seed dropout_offset dropout_threshold "
    "key_term query_term grad_key_term grad_query_term slot_term row_ids",
)


@inline
def arguments(address):
    """Read the arguments of a kernel, in the order of ``Arguments``."""
    scalars = field(address, 32, REAL)
    return Arguments(
        field(address, 0, OFFSET),
        field(address, 1, NEIGHBOR),
        field(address, 2, EDGE_ID),
        field(address, 3, REAL),
        field(address, 4, REAL),
        field(address, 5, REAL),
        field(address, 6, REAL),
        field(address, 7, REAL),
        field(address, 8, REAL),
        field(address, 9, REAL),
        field(address, 10, REAL),
        field(address, 11, EDGE),
        field(address, 12, EDGE_BIAS),
        field(address, 13, EDGE_FEATURES),
        field(address, 14, EDGE_QUERY),
        field(address, 15, OUT_EDGE),
        field(address, 16, GRAD_OUT_EDGE),
        field(address, 17, ATTENTION),
        field(address, 18, GRAD_ATTENTION),
        field(address, 19, GRAD_QUERY),
        field(address, 20, GRAD_PARAM),
        field(address, 21, GRAD_KEY),
        field(address, 22, GRAD_VALUE),
        field(address, 23, GRAD_EDGE),
        field(address, 24, GRAD_EDGE_BIAS),
        field(address, 25, GRAD_EDGE_FEATURES),
        field(address, 26, GRAD_EDGE_QUERY),
        field(address, 27, REAL),
        field(address, 28, REAL),
        field(address, 29, REAL),
        field(address, 30, SLOT_ROW),
        field(address, 31, REAL),
        (get(scalars, 0), get(scalars, 1), get(scalars, 2), get(scalars, 3)),
        field(address, 33, INTEGER),
        field(address, 34, INTEGER),
        field(address, 35, INTEGER),
        field(address, 36, INTEGER),
        field(address, 37, INTEGER),
        field(address, 38, INTEGER),
        field(address, 39, INTEGER),
        field(address, 40, INTEGER),
        field(address, 41, INTEGER),
        field(address, 42, INTEGER),
        field(address, 43, INTEGER),
        field(address, 44, INTEGER),
        field(address, 45, INTEGER),
        field(address, 46, KEY_TERM),
        field(address, 47, QUERY_TERM),
        field(address, 48, GRAD_KEY_TERM),
        field(address, 49, GRAD_QUERY_TERM),
        field(address, 50, REAL),
        field(address, 51, ROW_ID),
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
def row_of(row_ids, place):
    """Which row stands at a place of the CSR."""
    if row_ids is None:
        return place
    return np.int64(get(row_ids, place))


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
        place = get(a.slot_row, slot)
        if place >= 0:
            sums = shift(target, row_of(a.row_ids, place) * features)
            if place != before:
                clear(sums, features)
            add_scaled(sums, features, shift(slot_sums, slot * features), 1.0)
            before = place


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
    if row is None:
        return
    for k in range(n):
        put(row, k, 0.0)


@inline
def scale(row, n, factor):
    if row is None:
        return
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
def weighted_sum_tile(at, like, mask, row, weights, chunk, table, stride, fetch):
    """row += sum_k weights[k] * table[neighbour k]; ``fetch`` (or None): rows not yet in cache."""
    sums = load(row, at, like, mask)
    for k in range(chunk.n):
        if fetch is not None:
            fetch_ahead(table, at, like, chunk.nbrs, k, chunk.reach, stride)
        sums += load(table, neighbor(chunk.nbrs, k, stride) + at, like, mask) * get(weights, k)
    store(row, at, sums, mask)
