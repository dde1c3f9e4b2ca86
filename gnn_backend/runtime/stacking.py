"""The launch that puts tensors of one shape into one buffer, through a list of their addresses."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from gnn_backend.runtime.instances import BLOCK, Unit
from gnn_backend.runtime.instances import _entry as entry
from gnn_backend.runtime.launch import sparse_engine
from gnn_backend.runtime.plan import MAX_GRID_Y

STACK_ARGS = struct.Struct("<4q")  # StackArgs in kernels/stack.cuh
_WORDS = {16: "int4", 4: "int", 2: "short"}  # by bytes
_KEPT = 256  # lists of addresses, of some bytes a tensor


@lru_cache(maxsize=8)
def stack_unit(size: int) -> Unit:
    """The copy by words of ``size`` bytes."""
    name = f"stack_{size}"
    text = '#include "stack.cuh"\n' + entry(name, "StackArgs", BLOCK, f"stack<{_WORDS[size]}>")
    return Unit(name, (name,), text)


def all_units() -> list[Unit]:
    """Every unit that a call can ask for."""
    return [stack_unit(size) for size in _WORDS]


@lru_cache(maxsize=_KEPT)
def _listed(device: torch.device, addresses: tuple[int, ...], nbytes: int) -> tuple[Tensor, int]:
    """The addresses on the device, and the bytes of the largest word that all are made of."""
    size = next(s for s in _WORDS if not any(number % s for number in (nbytes, *addresses)))
    with torch.inference_mode(False):
        return torch.tensor(addresses, dtype=torch.int64).to(device), size


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """``torch.stack`` of tensors without gaps, of one shape, dtype and device, in one launch.

    Parameters
    ----------
    tensors : sequence of Tensor
        Of float32, bfloat16 or float16, and not empty.

    Returns
    -------
    Tensor [len(tensors), *]

    Raises
    ------
    Unsupported
        There is no kernel for the dtype or device.
    """
    first = tensors[0]
    engine = sparse_engine(first.device, first.dtype)
    nbytes = first.numel() * first.element_size()
    addresses = tuple([tensor.data_ptr() for tensor in tensors])
    table, size = _listed(first.device, addresses, nbytes)
    out, words = first.new_empty(len(tensors), *first.shape), nbytes // size
    unit = stack_unit(size)
    args = STACK_ARGS.pack(table.data_ptr(), out.data_ptr(), len(tensors), words)
    grid = -(-words // BLOCK), min(MAX_GRID_Y, len(tensors))
    engine.launch(unit, unit.name, grid, BLOCK, args)
    return out
