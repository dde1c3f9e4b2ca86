"""Reductions by an index or by offsets, as aggregation over the graph that groups rows.

The edges of that graph run from each row to its group. It is known without asking the device where
offsets are given, where an index was found to be sorted, or from its second use on; a one-off index
that is not sorted is left to torch, which is faster than sorting.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gnn_backend.adapters.stamps import is_untracked, stamp
from gnn_backend.adapters.torch_scatter.place import capturing, place_of
from gnn_backend.config import get_config
from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph
from gnn_backend.ops.groups import Groups
from gnn_backend.runtime import launch

_lock = threading.Lock()
_by_groups: weakref.WeakKeyDictionary[Groups, Graph] = weakref.WeakKeyDictionary()
_ends = WeakTensorKeyDictionary()  # offsets -> (stamp, first, last)
_by_offsets = WeakTensorKeyDictionary()  # offsets -> (stamp, graph)


def runs_on_kernels(src: Any) -> bool:
    """Whether rows of this kind are aggregated by device kernels; torch is as fast on the CPU."""
    if type(src) is not Tensor or not src.is_floating_point() or src.numel() == 0:
        return False
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if src.device.type == "cpu" and get_config().cpu_target != "emulator":
        return False
    try:
        launch.aggregation_engine(src.device, src.dtype)
    except Unsupported:
        return False
    return not capturing(src.device)


def graph_of_rows(
    src: Tensor, index: Tensor | None, ptr: Tensor | None, count: int | None
) -> Graph | None:
    """The graph that groups the rows of ``src``, or None where it is not known cheaply.

    Parameters
    ----------
    src : Tensor [E, *]
    index : integer Tensor [E], optional
    ptr : integer Tensor [N + 1], optional
        Offsets of the groups; takes the place of ``index``.
    count : int, optional
        Number of groups, N; by default one more than the largest index.
    """
    if ptr is not None:
        return _of_offsets(src, ptr) if ptr.dim() == 1 and ptr.device == src.device else None
    if index is None or index.dim() != 1 or index.numel() != src.shape[0]:
        return None
    if index.dtype not in (torch.int64, torch.int32):
        return None
    groups = place_of(src, index, 0, dim_size=count).groups
    if groups is None:
        return None
    with _lock:
        graph = _by_groups.get(groups)
        if graph is None:
            graph = _by_groups[groups] = _graph(groups.indptr, groups.order, src.shape[0])
        return graph


def covers(ptr: Tensor, rows: int) -> bool:
    """Whether offsets run from the first row to the last, as they did when last looked at."""
    if is_untracked(ptr):
        return False
    now = stamp(ptr)
    with _lock:
        found = _ends.get(ptr)
        if found is None or found[0] != now:
            found = _ends[ptr] = (now, int(ptr[0]), int(ptr[-1]))
        return found[1:] == (0, rows)  # type: ignore[no-any-return]


def _of_offsets(src: Tensor, ptr: Tensor) -> Graph | None:
    rows = src.shape[0]
    if not covers(ptr, rows):  # rows outside are torch's affair
        return None
    now = stamp(ptr)
    with _lock:
        found = _by_offsets.get(ptr)
        if found is None or found[0] != now:
            found = _by_offsets[ptr] = (now, _graph(ptr.clone(), None, rows))
        return found[1]  # type: ignore[no-any-return]


def _graph(indptr: Tensor, order: Tensor | None, rows: int) -> Graph:
    with torch.inference_mode(False), torch.no_grad():
        if order is None:
            order = torch.arange(rows, device=indptr.device)
        return Graph.from_csr(indptr, order.to(torch.int32), rows)
