"""Every kernel instance: its name and the source text that instantiates it.

A *unit* is what is compiled together: the passes of one functor at one dtype and lane layout, or
the merge kernels of one dtype. Units are compiled on first use and kept on disk.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

from gnn_backend import kernels
from gnn_backend.runtime.options import PLAIN, Options
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
    functor: str,
    header: str,
    dtype: str,
    shape: Shape,
    schedule: Schedule | None = None,
    options: Options = PLAIN,
    fragment: Shape | None = None,
) -> Unit:
    """The softmax-weighted passes of a functor at one dtype and lane layout.

    Entries: ``<unit>_forward``, ``_backward_dst``, ``_backward_src``, ``_row_stats``; the first
    not where ``options`` are those of a backward pass alone. ``fragment`` is the layout of edge
    features.
    """
    schedule = schedule or schedule_for(dtype, shape, functor, options, fragment)
    name, text = _unit_head(functor, header, dtype, shape, options, fragment)
    which = PASSES[1:] if options.cotangent else PASSES
    for entry in which[:-1]:
        tuning = getattr(schedule, entry)
        body = f"softmax_{entry}<Functor, Layout, {tuning.unroll}>"
        text += _entry(f"{name}_{entry}", "TraversalArgs", BLOCK, body, tuning.min_blocks)
    body = "softmax_row_stats<Layout, Functor::Options>"
    text += _entry(f"{name}_row_stats", "TraversalArgs", BLOCK, body)
    return Unit(name, tuple(f"{name}_{entry}" for entry in which), text)


@lru_cache(maxsize=512)
def weights_unit(
    functor: str,
    header: str,
    dtype: str,
    shape: Shape,
    options: Options,
    fragment: Shape | None = None,
) -> Unit:
    """The pass that writes attention weights, or sums them with their gradients (``cotangent``)."""
    tuning = schedule_for(dtype, shape, functor, options, fragment).forward
    name, text = _unit_head(functor, header, dtype, shape, options, fragment)
    entry, body = f"{name}_weights", f"softmax_weights<Functor, Layout, {tuning.unroll}>"
    text += _entry(entry, "TraversalArgs", BLOCK, body, tuning.min_blocks)
    text = text.replace('"softmax_forward.cuh"', '"softmax_weights.cuh"', 1)
    return Unit(entry, (entry,), text)


def _unit_head(
    functor: str, header: str, dtype: str, shape: Shape, options: Options, fragment: Shape | None
) -> tuple[str, str]:
    """Name of a unit, and its text up to the entries."""
    name = f"{functor.lower()}_{dtype}_{shape.name}"
    text = "#define GNNB_CROWDED\n" if on_tensor_cores(dtype, shape) else ""
    text += '#include "softmax_forward.cuh"\n#include "softmax_backward.cuh"\n'
    text += f'#include "{header}"\nusing Layout = {_layout(dtype, shape)};\n'
    if not options.numbered:
        return name, text + f"using Functor = gnnb::{functor}<Layout>;\n"
    name += f"_{options.name}" + (f"_{fragment.name}" if fragment else "")
    text += options.source(_layout(dtype, fragment) if fragment else "")
    return name, text + f"using Functor = gnnb::{functor}<Layout, Options>;\n"


def _layout(dtype: str, shape: Shape) -> str:
    flags = f"{str(shape.vector).lower()}, {str(shape.full).lower()}"
    numbers = f"{shape.lanes}, {shape.heads}, {shape.values}"
    return f"gnnb::Shape<{_cuda_type(dtype)}, {numbers}, {flags}>"


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
    for functor in FUNCTORS.values():
        for dtype in DTYPE_NAMES.values():
            for shape in all_shapes(dtype):
                units.append(softmax_unit(functor.cuda_type, functor.cuda_header, dtype, shape))
    return units
