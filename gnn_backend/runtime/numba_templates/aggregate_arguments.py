"""Arguments of the aggregations' kernels, and what an edge brings to a message.

A kernel sees rows [rows, heads, width]: heads are told apart only where each has a number of its
own on every edge. Forward fields are written by the forward and read by the backward.
"""

# mypy: disable-error-code=no-untyped-def

from collections import namedtuple

import numpy as np
from numba import types

from gnn_backend.runtime.cpu_memory import field, get, load
from gnn_backend.runtime.cpu_vector import as_is
from gnn_backend.runtime.numba_templates.common import (
    EDGE_ID,
    INTEGER,
    NEIGHBOR,
    OFFSET,
    REAL,
    ROW_ID,
    SLOT_ROW,
    inline,
)

# variant: replaced when composed
NAN_WINS = True
compared = as_is  # rounds messages before one is compared with another
# Optional arguments; None: not given, or not needed.
TEMPERATURE = EDGE_NUMBERS = EDGE_ROWS = None
SUM = SQUARE = MAX = MIN = MUL = SOFTMAX = types.float32
MAX_TIES = MIN_TIES = MUL_REST = SOFTMAX_LSE = types.float32
MAX_FIRST = MIN_FIRST = types.int32
GRAD_SUM = GRAD_SQUARE = GRAD_MAX = GRAD_MIN = GRAD_MUL = GRAD_SOFTMAX = types.float32
GRAD_X = GRAD_TEMPERATURE = types.float32
GRAD_EDGE_NUMBERS = GRAD_EDGE_ROWS = None
# end of variant

Aggregation = namedtuple(
    "Aggregation",
    "indptr indices edge_ids x temperature edge_numbers edge_rows sum square max min mul "
    "softmax max_ties min_ties max_first min_first mul_rest softmax_lse grad_sum grad_square "
    "grad_max grad_min grad_mul grad_softmax grad_x grad_edge_numbers grad_edge_rows "
    "grad_temperature slots first_slots slot_row buffers rows edges heads width blocks "
    "row_ids",
)


@inline
def aggregation(address):
    """Read the arguments of a kernel, in the order of ``Aggregation``."""
    return Aggregation(
        field(address, 0, OFFSET),
        field(address, 1, NEIGHBOR),
        field(address, 2, EDGE_ID),
        field(address, 3, REAL),
        field(address, 4, TEMPERATURE),
        field(address, 5, EDGE_NUMBERS),
        field(address, 6, EDGE_ROWS),
        field(address, 7, SUM),
        field(address, 8, SQUARE),
        field(address, 9, MAX),
        field(address, 10, MIN),
        field(address, 11, MUL),
        field(address, 12, SOFTMAX),
        field(address, 13, MAX_TIES),
        field(address, 14, MIN_TIES),
        field(address, 15, MAX_FIRST),
        field(address, 16, MIN_FIRST),
        field(address, 17, MUL_REST),
        field(address, 18, SOFTMAX_LSE),
        field(address, 19, GRAD_SUM),
        field(address, 20, GRAD_SQUARE),
        field(address, 21, GRAD_MAX),
        field(address, 22, GRAD_MIN),
        field(address, 23, GRAD_MUL),
        field(address, 24, GRAD_SOFTMAX),
        field(address, 25, GRAD_X),
        field(address, 26, GRAD_EDGE_NUMBERS),
        field(address, 27, GRAD_EDGE_ROWS),
        field(address, 28, GRAD_TEMPERATURE),
        field(address, 29, REAL),
        field(address, 30, OFFSET),
        field(address, 31, SLOT_ROW),
        field(address, 32, REAL),
        field(address, 33, INTEGER),
        field(address, 34, INTEGER),
        field(address, 35, INTEGER),
        field(address, 36, INTEGER),
        field(address, 37, INTEGER),
        field(address, 38, ROW_ID),
    )


@inline
def edge_place(edge_ids, k):
    """The caller's number of the edge at position ``k``."""
    if edge_ids is None:
        return k
    return np.int64(get(edge_ids, k))


@inline
def edge_value(a, place, column, like, mask):
    """What an edge brings to a tile of its message: a number, or a part of its row."""
    return _number_or_row(a.edge_numbers, a.edge_rows, place, column, a.width, like, mask)


@inline
def _number_or_row(numbers, rows, place, column, width, like, mask):
    if numbers is None:
        return load(rows, place * width + column, like, mask)
    return like + get(numbers, place)
