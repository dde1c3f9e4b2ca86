"""Launches of the typed linear: rows times the weight of their type, and the weights' gradient.

Operands arrive contiguous, aligned and checked (``ops.typed_linear``).
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from gnn_backend.config import get_config
from gnn_backend.runtime import cuda
from gnn_backend.runtime.block_sparse import allows_tf32
from gnn_backend.runtime.gemm_units import (
    ACCESS,
    GEMM_BLOCK,
    ROWS,
    SUM_BLOCK,
    WIDTH,
    columns_for,
    linear_unit,
    weight_grad_sum_unit,
    weight_grad_unit,
)
from gnn_backend.runtime.launch import sparse_engine
from gnn_backend.runtime.row_tiles import row_tiles
from gnn_backend.runtime.selection import DTYPE_NAMES, WARP

LINEAR_ARGS = struct.Struct("<12q")  # LinearArgs in kernels/typed_linear.cuh
WEIGHT_GRAD_ARGS = struct.Struct("<12q")  # WeightGradArgs in kernels/weight_grad.cuh
SUM_ARGS = struct.Struct("<7q")  # WeightGradSumArgs there
_MOST_BLOCKS = 2048  # beside one a segment: a few for each place on a GPU
_SHORTEST_CHUNK = 256  # places; a partial takes as long to write as some of them to read


def has_kernels(x: Tensor) -> bool:
    """Whether there are kernels for a tensor of this dtype on this device."""
    if x.dtype not in DTYPE_NAMES:
        return False
    if x.device.type == "cuda":
        return cuda.available()
    return x.device.type == "cpu" and get_config().cpu_target == "emulator"


def chunk_for(num_rows: int, blocks: int) -> int:
    """Places of a segment that are added up at once, by so many blocks for all of a weight."""
    chunk = max(_SHORTEST_CHUNK, -(-num_rows * blocks // _MOST_BLOCKS))
    return -(-chunk // WARP) * WARP


def linear(
    x: Tensor,
    columns: Tensor,
    out: Tensor,
    ptr: Tensor,
    num_rows: int,
    rows: Tensor | None,
    out_rows: Tensor | None,
    scale: Tensor | None,
) -> None:
    """Write ``out[out_rows[i]] = scale[i] * x[rows[i]] @ columns[type of i].T``.

    Parameters
    ----------
    x : Tensor [N, H, I]
    columns : Tensor [T, H or 1, O, I]
    out : Tensor [M, H, O]
    ptr : int32 or int64 [T + 1]
        Bounds of the types' places.
    num_rows : int
        Places in all.
    rows, out_rows : int32 [num_rows] or None
        None: the place itself.
    scale : float32 [num_rows] or None
    """
    (_, heads, inner), outer = x.shape, columns.shape[2]
    tiles = row_tiles(ptr, num_rows, ROWS).tiles
    dtype, tensor = _form(x)
    width = columns_for(outer, tensor)
    across = -(-outer // width)
    unit = linear_unit(dtype, tensor, width, _aligned(x, columns, out))
    args = LINEAR_ARGS.pack(
        tiles.data_ptr(), x.data_ptr(), columns.data_ptr(), out.data_ptr(),
        _address(rows), _address(out_rows), _address(scale),
        heads, columns.shape[1], inner, outer, across,
    )  # fmt: skip
    grid = (tiles.shape[0] * heads * across, 1)
    sparse_engine(x.device, x.dtype).launch(unit, unit.name, grid, GEMM_BLOCK, args)


def weight_grad(
    x: Tensor,
    grad: Tensor,
    ptr: Tensor,
    num_rows: int,
    x_rows: Tensor | None,
    grad_rows: Tensor | None,
    scale: Tensor | None,
    each: bool,
) -> Tensor:
    """Sum of ``scale[i] * outer(x[x_rows[i]], grad[grad_rows[i]])`` over the places of each type.

    Parameters
    ----------
    x, grad : Tensor [N, H, I], [M, H, O]
    ptr, num_rows, x_rows, grad_rows, scale
        As for :func:`linear`.
    each : bool
        A sum a head, instead of one over the heads.

    Returns
    -------
    Tensor [T, H or 1, I, O]
    """
    (_, heads, inner), outer, types = x.shape, grad.shape[2], ptr.numel() - 1
    dtype, tensor = _form(x)
    down, across = -(-inner // WIDTH), -(-outer // WIDTH)
    tiles, first = row_tiles(ptr, num_rows, chunk_for(num_rows, heads * down * across))
    engine = sparse_engine(x.device, x.dtype)
    partial = engine.floats(tiles.shape[0], heads, inner, outer)
    unit = weight_grad_unit(dtype, tensor, _aligned(x, grad), scale is not None)
    args = WEIGHT_GRAD_ARGS.pack(
        tiles.data_ptr(), x.data_ptr(), grad.data_ptr(), partial.data_ptr(),
        _address(x_rows), _address(grad_rows), _address(scale),
        heads, inner, outer, down, across,
    )  # fmt: skip
    grid = (tiles.shape[0] * heads * down * across, 1)
    engine.launch(unit, unit.name, grid, GEMM_BLOCK, args)
    out = x.new_empty(types, heads if each else 1, inner, outer)
    blocks = -(-inner * outer // WARP)
    unit = weight_grad_sum_unit(dtype)
    args = SUM_ARGS.pack(
        partial.data_ptr(), first.data_ptr(), out.data_ptr(), heads, each, inner * outer, blocks
    )
    engine.launch(unit, unit.name, (out.shape[0] * out.shape[1] * blocks, 1), SUM_BLOCK, args)
    return out


def _form(x: Tensor) -> tuple[str, bool]:
    """Name of the dtype, and whether tensor cores multiply it."""
    return DTYPE_NAMES[x.dtype], x.dtype != torch.float32 or allows_tf32()


def _aligned(*tables: Tensor) -> bool:
    """Whether rows begin and end at multiples of 16 bytes."""
    return all(
        table.shape[-1] * table.element_size() % ACCESS == 0 and table.data_ptr() % ACCESS == 0
        for table in tables
    )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
