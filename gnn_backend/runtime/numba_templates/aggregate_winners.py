"""Backward of max and min that go to the first winner: one edge for each row and channel.

Work is by result, not by edge. Blocks own columns where sources are written and destination rows
where edges are: no two blocks write one number, and each adds in the order of the rows.
"""

# mypy: disable-error-code=no-untyped-def

import numpy as np

from gnn_backend.runtime.cpu_memory import get, load, put, store
from gnn_backend.runtime.cpu_vector import single, total
from gnn_backend.runtime.numba_templates.aggregate_arguments import (
    aggregation,
    edge_place,
    edge_value,
)
from gnn_backend.runtime.numba_templates.common import REAL, inline, neighbor
from gnn_backend.runtime.numba_templates.message_copy import edge_slope, x_slope

LINE = 16  # numbers: columns that one block owns at least


@inline
def winner(a, k, row, column):
    """(where the winner's x is, place of the edge for this head, what the edge brings, x)."""
    stride, like = a.heads * a.width, single(REAL)
    h = column // a.width
    source = neighbor(a.indices, k, stride) + column
    place = edge_place(a.edge_ids, k) * a.heads + h
    x = load(a.x, source, like, None)
    return source, place, edge_value(a, place, column - h * a.width, like, None), x


@inline
def add_to_source(grad, first, a, row, column):
    if grad is None:
        return
    o, like = row * a.heads * a.width + column, single(REAL)
    k = np.int64(get(first, o))
    if k >= 0:
        source, _, edge, x = winner(a, k, row, column)
        slope = x_slope(load(grad, o, like, None), x, edge)
        store(a.grad_x, source, load(a.grad_x, source, like, None) + slope, None)


@inline
def add_to_edge(grad, first, a, row, column):
    if grad is None:
        return
    o, like = row * a.heads * a.width + column, single(REAL)
    k = np.int64(get(first, o))
    if k >= 0:
        _, place, edge, x = winner(a, k, row, column)
        slope = total(edge_slope(load(grad, o, like, None), x, edge))
        within = column - column // a.width * a.width
        add_number(a.grad_edge_numbers, place, slope)
        add_number(a.grad_edge_rows, place * a.width + within, slope)


@inline
def add_number(target, place, value):
    if target is None:
        return
    put(target, place, get(target, place) + value)


def winners_to_sources(block, address):
    """Add to the gradients of x the columns of a block."""
    a = aggregation(address)
    stride = a.heads * a.width
    lines = (stride + LINE - 1) // LINE
    start = lines * block // a.blocks * LINE
    stop = min(lines * (block + 1) // a.blocks * LINE, stride)
    for row in range(a.rows):
        for column in range(start, stop):
            add_to_source(a.grad_max, a.max_first, a, row, column)
            add_to_source(a.grad_min, a.min_first, a, row, column)


def winners_to_edges(block, address):
    """Add to the gradients of what the edges bring the rows of a block."""
    a = aggregation(address)
    for row in range(a.rows * block // a.blocks, a.rows * (block + 1) // a.blocks):
        for column in range(a.heads * a.width):
            add_to_edge(a.grad_max, a.max_first, a, row, column)
            add_to_edge(a.grad_min, a.min_first, a, row, column)
