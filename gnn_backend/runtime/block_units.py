"""Kernel instances of attention and of sums over tiles, and what they are tuned by."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

from gnn_backend.runtime.instances import BLOCK, MERGE_BLOCK, Unit
from gnn_backend.runtime.instances import _cuda_type as cuda_type
from gnn_backend.runtime.instances import _entry as entry
from gnn_backend.runtime.selection import DTYPE_NAMES

DIMS = range(16, 129, 16)
SUM_DIMS = range(16, 65, 16)  # of a sum: one piece of a row that a lane loads at once, or two
_BOTH_BYTES = 128  # of a head's row: up to this the gradients of keys and values fit one pass


@lru_cache(maxsize=128)
def block_unit(dtype: str, dim: int, bias: bool = False) -> Unit:
    """The passes at one dtype and head dimension; ``bias``: edges have a term of their logits.

    Entries: ``<unit>_forward``, ``_row_stats``, ``_backward_dst``, and by source ``_backward_src``
    or, where both gradients do not fit one pass, ``_backward_key`` and ``_backward_value``.
    """
    name = f"block_{dtype}_d{dim}{'_bias' if bias else ''}"
    text = '#define GNNB_CROWDED\n#include "block_attention.cuh"\n'
    passes = {"forward": "block_forward", "row_stats": "block_row_stats",
              "backward_dst": "block_backward_dst"}  # fmt: skip
    if fits_both(dtype, dim):
        passes["backward_src"] = "block_backward_src, true, true"
    else:
        passes["backward_key"] = "block_backward_src, true, false"
        passes["backward_value"] = "block_backward_src, false, true"
    for which, body in passes.items():
        function, _, flags = body.partition(", ")
        tuning = _schedule(which, dtype, _row_bytes(dtype, dim), bias)
        switches = ", ".join(str(on).lower() for on in (tuning.held, tuning.ahead, bias))
        layout = f"gnnb::Head<{cuda_type(dtype)}, {dim}, {switches}>"
        arguments = f"{function}<{layout}{', ' if flags else ''}{flags}>"
        text += entry(f"{name}_{which}", "BlockArgs", BLOCK, arguments, tuning.min_blocks)
    return Unit(name, tuple(f"{name}_{which}" for which in passes), text)


class Tuning(NamedTuple):
    """How a pass trades registers for loads (``Head`` in kernels/block_sparse.cuh)."""

    held: bool
    ahead: bool
    min_blocks: int


def _schedule(which: str, dtype: str, row_bytes: int, bias: bool) -> Tuning:
    """Tuning of a pass: what fits without spilling."""
    two_sided = which in ("backward_dst", "backward_key")  # two rows of the window are wanted
    held, ahead = row_bytes <= (192 if two_sided else 256), row_bytes <= 128
    if not ahead:
        return Tuning(held, ahead, 2)
    narrow = dtype != "f32" or row_bytes < 128
    blocks = {"forward": 4, "backward_dst": 3 if narrow else 2}
    fitting = blocks.get(which, 2)
    return Tuning(held, ahead, max(1, fitting - bias))


@lru_cache(maxsize=128)
def block_sum_unit(dtype: str, dim: int, weighted: bool) -> Unit:
    """Sums of gathered rows, cut into pieces of ``dim`` columns that count as heads."""
    name = f"block_sum_{dtype}_d{dim}{'_weighted' if weighted else ''}"
    layout = f"gnnb::Head<{cuda_type(dtype)}, {dim}, false, true, {str(weighted).lower()}>"
    text = '#define GNNB_CROWDED\n#include "block_sum.cuh"\n'
    text += entry(
        name, "BlockArgs", BLOCK, f"block_sum<{layout}>", 3 if _row_bytes(dtype, dim) > 128 else 4
    )
    return Unit(name, (name,), text)


def _row_bytes(dtype: str, dim: int) -> int:
    return dim * (4 if dtype == "f32" else 2)


def fits_both(dtype: str, dim: int) -> bool:
    """Whether one pass by source takes both gradients."""
    return _row_bytes(dtype, dim) <= _BOTH_BYTES


@lru_cache(maxsize=8)
def block_merge_unit(dtype: str) -> Unit:
    """Merges of split windows: ``<unit>_softmax`` and ``<unit>_sum``."""
    name = f"block_merge_{dtype}"
    text = '#include "block_merge.cuh"\n'
    for kind, flag in (("softmax", "true"), ("sum", "false")):
        body = f"block_merge<{cuda_type(dtype)}, {flag}>"
        text += entry(f"{name}_{kind}", "BlockMergeArgs", MERGE_BLOCK, body)
    return Unit(name, (f"{name}_softmax", f"{name}_sum"), text)


def all_units() -> list[Unit]:
    """Every unit that a call can ask for."""
    dtypes = DTYPE_NAMES.values()
    passes = [block_unit(*which) for which in itertools.product(dtypes, DIMS, (False, True))]
    sums = [block_sum_unit(*which) for which in itertools.product(dtypes, SUM_DIMS, (False, True))]
    return [*passes, *sums, *map(block_merge_unit, dtypes)]
