"""Every kernel instance: its name and the source text that instantiates it.

A *unit* is what is compiled together: the passes of one functor at one dtype and lane layout, or
the merge kernels of one dtype. Units are compiled on first use and kept on disk.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

from gnn_backend import kernels
from gnn_backend.runtime.selection import (
    DTYPE_NAMES,
    DTYPE_TYPES,
    Schedule,
    Shape,
    all_shapes,
    on_tensor_cores,
    schedule_for,
)

BLOCK = 128  # threads of a traversal block (kernels/common.cuh)
MERGE_BLOCK = 256  # threads of a merge block (kernels/merge.cuh)
MERGE_VECTORS = (1, 4)  # columns a lane
PASSES = ("forward", "backward_dst", "backward_src", "row_stats")


@dataclass(frozen=True)
class Unit:
    """A translation unit: a name, the entry points and the text."""

    name: str
    entries: tuple[str, ...]
    source: str

    @cached_property
    def key(self) -> str:
        """Hash of the text and of every header, so that an edited kernel is never stale."""
        digest = hashlib.sha256(self.source.encode())
        for name, text in headers().items():
            digest.update(name.encode())
            digest.update(text.encode())
        return digest.hexdigest()[:24]


@lru_cache(maxsize=1)
def headers() -> dict[str, str]:
    """All headers by the path they are included with."""
    root = kernels.DIRECTORY
    files = [*root.glob("*.cuh"), *(root / "functors").glob("*.cuh")]
    return {f.relative_to(root).as_posix(): f.read_text(encoding="utf-8") for f in sorted(files)}


def _entry(name: str, args: str, block: int, body: str, min_blocks: int = 1) -> str:
    return f"GNNB_ENTRY_TUNED({name}, gnnb::{args}, {block}, {min_blocks}, (gnnb::{body}(args)))\n"


@lru_cache(maxsize=512)
def softmax_unit(
    functor: str, header: str, dtype: str, shape: Shape, schedule: Schedule | None = None
) -> Unit:
    """The softmax-weighted passes of a functor at one dtype and lane layout.

    Entries: ``<unit>_forward``, ``_backward_dst``, ``_backward_src``, ``_row_stats``.
    """
    schedule = schedule or schedule_for(dtype, shape)
    name = f"{functor.lower()}_{dtype}_{shape.name}"
    flags = f"{str(shape.vector).lower()}, {str(shape.full).lower()}"
    layout = (
        f"gnnb::Shape<{_cuda_type(dtype)}, {shape.lanes}, {shape.heads}, {shape.values}, {flags}>"
    )
    text = "#define GNNB_CROWDED\n" if on_tensor_cores(dtype, shape) else ""
    text += '#include "softmax_forward.cuh"\n#include "softmax_backward.cuh"\n'
    text += f'#include "{header}"\n'
    text += f"using Layout = {layout};\nusing Functor = gnnb::{functor}<Layout>;\n"
    for which in ("forward", "backward_dst", "backward_src"):
        tuning = getattr(schedule, which)
        body = f"softmax_{which}<Functor, Layout, {tuning.unroll}>"
        text += _entry(f"{name}_{which}", "TraversalArgs", BLOCK, body, tuning.min_blocks)
    text += _entry(f"{name}_row_stats", "TraversalArgs", BLOCK, "softmax_row_stats<Layout>")
    return Unit(name, tuple(f"{name}_{p}" for p in PASSES), text)


@lru_cache(maxsize=8)
def merge_unit(dtype: str) -> Unit:
    """Merge kernels that write ``dtype``: ``merge_<dtype>_{softmax,sum}_v{1,4}``."""
    text, kind = '#include "merge.cuh"\n', _cuda_type(dtype)
    entries = []
    for name in ("softmax", "sum"):
        for vector in MERGE_VECTORS:
            entries.append(f"merge_{dtype}_{name}_v{vector}")
            text += _entry(entries[-1], "MergeArgs", MERGE_BLOCK, f"merge_{name}<{kind}, {vector}>")
    return Unit(f"merge_{dtype}", tuple(entries), text)


def _cuda_type(dtype: str) -> str:
    name = DTYPE_TYPES[dtype]
    return name if name == "float" else f"gnnb::{name}"


def all_units() -> list[Unit]:
    """Every unit that a call can ask for, with the shipped schedule."""
    from gnn_backend.ops.functors import FUNCTORS

    units = [merge_unit(dtype) for dtype in DTYPE_NAMES.values()]
    for functor in (functor for functor in FUNCTORS.values() if functor.cuda_type):
        for dtype in DTYPE_NAMES.values():
            for shape in all_shapes(dtype):
                units.append(softmax_unit(functor.cuda_type, functor.cuda_header, dtype, shape))
    return units
