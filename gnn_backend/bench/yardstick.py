"""The yardstick: time of a balanced gather-and-sum of the neighbours' rows, nothing else.

g1 reads one row an edge from one table, g2 one row from each of two tables. A kernel that reads
each neighbour row once cannot beat g1 by much, unless caches hold the rows; ratios to it compare
across graphs and machines.
"""

from __future__ import annotations

import importlib.util
import struct
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gnn_backend.bench import timing
from gnn_backend.datasets import GraphData
from gnn_backend.errors import invalid
from gnn_backend.graph import Graph, Splits
from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.instances import Unit
from gnn_backend.runtime.selection import DTYPE_NAMES, DTYPE_TYPES, WARP

CHUNKS = (64, 128, 256, 512)  # neighbours a task; the best one counts
WIDTHS = (16, 32, 64, 128, 256, 512)  # values a row
VOID_ABOVE = 0.05  # a relative difference of two yardsticks above this voids ratios to them
_BUILT_WIDTH = 128  # the width that `kernels --build` carries
_BLOCK = 128
_ARGS = struct.Struct("<7q")  # YardstickArgs in kernels/yardstick.cuh


def supports(width: int, dtype: torch.dtype) -> bool:
    """Whether rows of ``width`` values of ``dtype`` have a kernel."""
    return width in WIDTHS and dtype in DTYPE_NAMES


@lru_cache(maxsize=64)
def unit(width: int, dtype: torch.dtype) -> Unit:
    """The kernels for one and for two tables at one row width and dtype."""
    if not supports(width, dtype):
        kinds = ", ".join(str(kind) for kind in DTYPE_NAMES)
        raise invalid("width, dtype", "no yardstick", (width, dtype), f"{WIDTHS} and {kinds}")
    short = DTYPE_NAMES[dtype]
    kind = DTYPE_TYPES[short] if short == "f32" else f"gnnb::{DTYPE_TYPES[short]}"
    name = f"yardstick_{short}_w{width}"
    entries = tuple(f"{name}_g{tables}" for tables in (1, 2))
    text = '#include "yardstick.cuh"\n'
    for tables, entry in enumerate(entries, start=1):
        body = f"(gnnb::gather_sum<{kind}, {width}, {tables}>(args))"
        text += f"GNNB_ENTRY({entry}, gnnb::YardstickArgs, {_BLOCK}, {body})\n"
    return Unit(name, entries, text)


def all_units() -> list[Unit]:
    """The units that are built ahead: the default row width in every dtype."""
    return [unit(_BUILT_WIDTH, dtype) for dtype in DTYPE_NAMES]


def gather_sum(graph: Graph, chunk: int, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Sum the neighbours' rows of one or two tables at every destination.

    Parameters
    ----------
    graph : Graph
    chunk : int
        Longest piece of a row that one warp sums.
    tables : one or two Tensors [num_src, width]
        Contiguous.

    Returns
    -------
    out : float32 [num_dst, width]
        Rows of one chunk; longer rows are not written.
    partial : float32 [slots, width]
        The pieces of longer rows, in the order of ``graph.splits("dst", chunk)``.
    """
    buffers = _Buffers(graph, tables[0].shape[1])
    splits = graph.splits("dst", chunk)
    buffers.launch(DeviceEngine(graph.device), splits, tables)
    return buffers.out, buffers.partial[: splits.num_slots]


def measure(
    graph: Graph, width: int, dtype: torch.dtype, inner: int, repeats: int
) -> dict[str, Any]:
    """Milliseconds of g1 and g2 by graph replay, each at its best chunk.

    Returns
    -------
    dict
        g1_ms, g2_ms, g1_chunk, g2_chunk.
    """
    shape = (graph.num_src, width)
    first, second = (torch.randn(shape, device=graph.device).to(dtype) for _ in range(2))
    engine, buffers = DeviceEngine(graph.device), _Buffers(graph, width)
    result: dict[str, Any] = {}
    for name, tables in (("g1", (first,)), ("g2", (first, second))):
        times = {}
        for chunk in CHUNKS:
            splits = graph.splits("dst", chunk)

            def call(splits: Splits = splits, tables: tuple[Tensor, ...] = tables) -> None:
                buffers.launch(engine, splits, tables)

            times[chunk] = timing.replay_ms(call, inner, repeats)
        best = min(times, key=lambda chunk: times[chunk])
        result[f"{name}_ms"], result[f"{name}_chunk"] = times[best], best
    return result


def check(
    path: Path, measured: dict[str, Any], data: GraphData, width: int, dtype: str
) -> dict[str, Any]:
    """Compare with another yardstick, a file with ``limits(src, dst, num_src, num_dst, ...)``.

    Returns
    -------
    dict
        Its g1_ms and g2_ms, the relative differences of ours, and ``void``: whether one is
        above ``VOID_ABOVE``.
    """
    source, destination = data.edge_index.long()
    nodes = data.num_nodes
    theirs = _load(path).limits(source, destination, nodes, nodes, width, (dtype,))[dtype]
    difference = {name: measured[f"{name}_ms"] / float(theirs[name]) - 1 for name in ("g1", "g2")}
    return {
        "file": path.name,
        "g1_ms": theirs["g1"],
        "g2_ms": theirs["g2"],
        "difference": {name: round(value, 4) for name, value in difference.items()},
        "void": any(abs(value) > VOID_ABOVE for value in difference.values()),
    }


class _Buffers:
    """Where a launch writes: large enough for every chunk length."""

    def __init__(self, graph: Graph, width: int) -> None:
        slots = max(graph.splits("dst", chunk).num_slots for chunk in CHUNKS)
        options: dict[str, Any] = {"dtype": torch.float32, "device": graph.device}
        self.graph, self.width = graph, width
        self.out = torch.empty(graph.num_dst, width, **options)
        self.partial = torch.empty(max(1, slots), width, **options)

    def launch(self, engine: DeviceEngine, splits: Splits, tables: tuple[Tensor, ...]) -> None:
        kernels = unit(self.width, tables[0].dtype)
        pointers = [table.data_ptr() for table in tables]
        args = _ARGS.pack(
            splits.tasks.data_ptr(),
            splits.num_tasks,
            self.graph.by_dst.indices.data_ptr(),
            pointers[0],
            pointers[-1],
            self.out.data_ptr(),
            self.partial.data_ptr(),
        )
        blocks = -(-splits.num_tasks * WARP // _BLOCK)
        entry = kernels.entries[len(tables) - 1]
        engine.launch(kernels, entry, (blocks, 1), _BLOCK, args)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("other_yardstick", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise invalid("check_yardstick", "not a Python file", str(path), "a file with limits()")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
