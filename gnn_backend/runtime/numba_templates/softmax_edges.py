"""A few edges of one row at a time, and what each brings along: ids, terms, features, dropout.

Edge tensors are in the caller's order. ``chunk.ids`` leads there from the order of the rows; it
is None where both orders are one, or where no edge tensor is read.
"""

# mypy: disable-error-code=no-untyped-def

from collections import namedtuple

import numpy as np

from gnn_backend.runtime.cpu_memory import get, load, optional, prefetch, put, shift, store
from gnn_backend.runtime.cpu_random import philox_keep
from gnn_backend.runtime.cpu_vector import lanes, zeros
from gnn_backend.runtime.numba_templates.common import (
    AHEAD,
    REAL,
    inline,
    neighbor,
)

EDGES = 32  # neighbours at a time: two gathered tiles of them stay in the first-level cache
KEEP_HEADS = 4  # heads that share one draw of four random words
KEEP_SCALE = 3  # which of the scalars is 1 / (1 - p)

# n edges from ``first`` on: their neighbours, how far one may read ahead, and their ids.
Chunk = namedtuple("Chunk", "n nbrs reach first ids")


@inline
def chunk_at(a, e, end):
    """The edges of a row from ``e`` on, ``EDGES`` at most."""
    nbrs, ids = shift(a.indices, e), shift(a.edge_ids, e)
    return Chunk(min(end - e, EDGES), nbrs, a.edges - e - 1, e, ids)


@inline
def edge_number(ids, first, k):
    """The caller's number of edge ``k``."""
    if ids is None:
        return first + k
    return np.int64(get(ids, k))


@inline
def edge_position(table, chunk, k, stride):
    """Where the row of edge ``k`` begins in an edge tensor; 0 in one that is not given."""
    if table is None:
        return np.int64(0)
    return edge_number(chunk.ids, chunk.first, k) * stride


@inline
def fetch_edge_ahead(table, at, like, chunk, k, stride):
    """Ask for the tile of a later edge."""
    if table is None:
        return
    later = edge_number(chunk.ids, chunk.first, min(k + AHEAD, chunk.reach))
    prefetch(table, later * stride + at, like)


# ------------------------------------------------------------------ one number an edge


@inline
def edge_scalars(target, chunk, table, heads):
    """target[k] = table[edge k]; returns the target, or None if there is no table."""
    fill_edge_scalars(target, chunk, table, heads)
    return optional(target, table)


@inline
def fill_edge_scalars(target, chunk, table, heads):
    if table is None:
        return
    for k in range(chunk.n):
        put(target, k, get(table, edge_position(table, chunk, k, heads)))


@inline
def add_edge_scalars(target, chunk, table, heads):
    """target[k] += table[edge k]."""
    if table is None:
        return
    for k in range(chunk.n):
        put(target, k, get(target, k) + get(table, edge_position(table, chunk, k, heads)))


@inline
def put_edge_scalars(table, chunk, heads, values):
    """table[edge k] = values[k]."""
    if table is None:
        return
    for k in range(chunk.n):
        put(table, edge_position(table, chunk, k, heads), get(values, k))


@inline
def multiply(values, n, factors):
    """values[k] *= factors[k], lanes past the last included; nothing if there are no factors."""
    if factors is None:
        return
    like = zeros(REAL, 1)
    for k in range(0, n, lanes(like)):
        store(values, k, load(values, k, like, None) * load(factors, k, like, None), None)


# ------------------------------------------------------------------ features


@inline
def edge_dot_part(at, k, like, mask, chunk, fixed, param, features, stride, swapped, swap_stride):
    """A tile of <features of edge k, row>: a fixed row, or one of ``swapped`` by neighbour."""
    fetch_edge_ahead(features, at, like, chunk, k, stride)
    own = load(features, edge_position(features, chunk, k, stride) + at, like, mask)
    return own * other_row(at, k, like, mask, chunk, fixed, swapped, swap_stride)


@inline
def other_row(at, k, like, mask, chunk, fixed, swapped, stride):
    if swapped is None:
        return fixed
    return load(swapped, neighbor(chunk.nbrs, k, stride) + at, like, mask)


@inline
def weighted_edges_tile(at, like, mask, row, weights, chunk, table, stride):
    """row += sum_k weights[k] * table[edge k]."""
    sums = load(row, at, like, mask)
    for k in range(chunk.n):
        offset = edge_position(table, chunk, k, stride) + at
        sums += load(table, offset, like, mask) * get(weights, k)
    store(row, at, sums, mask)


# ------------------------------------------------------------------ dropout


@inline
def keep_factors(dropout, a, chunk, h, keep):
    """0 or 1 / (1 - p) for every edge of the chunk, of head ``h``; None without dropout.

    Heads must be asked for in turn: the first of four draws for all of them.
    """
    draw_factors(dropout, a, chunk, h, keep)
    return optional(shift(keep, (h % KEEP_HEADS) * EDGES), dropout)


@inline
def draw_factors(dropout, a, chunk, h, keep):
    if dropout is None:
        return
    if h % KEEP_HEADS != 0:
        return
    like = zeros(REAL, 1)
    counters = (h // KEEP_HEADS, a.dropout_offset, a.dropout_seed)
    for k in range(0, chunk.n, lanes(like)):
        factors = philox_keep(
            like, chunk.ids, chunk.first, k, chunk.n, counters,
            a.dropout_threshold, a.scalars[KEEP_SCALE],
        )  # fmt: skip
        store(keep, k, factors[0], None)
        store(keep, EDGES + k, factors[1], None)
        store(keep, 2 * EDGES + k, factors[2], None)
        store(keep, 3 * EDGES + k, factors[3], None)
