"""DGL's readouts on the device's kernels: reductions and softmax over the graphs of a batch.

``sum_nodes``, ``softmax_edges`` and the others, and the pooling modules, lead to the functions that
are replaced here. How many nodes each graph has is known by a tensor that DGL keeps with the batch,
so that its sums are made once and nothing waits for the device afterwards.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gnn_backend.adapters.grouping import covers, graph_of_rows, runs_on_kernels
from gnn_backend.adapters.stamps import is_untracked, stamp
from gnn_backend.adapters.torch_scatter import autograd
from gnn_backend.adapters.torch_scatter.place import segments_of
from gnn_backend.errors import Unsupported
from gnn_backend.ops.aggregation import aggregate

_REDUCERS = ("sum", "mean", "max", "min")
_lock = threading.Lock()
_offsets = WeakTensorKeyDictionary()  # lengths of segments -> (stamp, offsets)


def segment_reduce_ready(seglen: Any, value: Any, reducer: str = "sum") -> bool:
    """Whether a call of ``dgl.ops.segment_reduce`` has a kernel."""
    return reducer in _REDUCERS and _ready(seglen, value)


def segment_reduce(seglen: Tensor, value: Tensor, reducer: str = "sum") -> Tensor:
    """Reduce segments of rows, as ``dgl.ops.segment_reduce``.

    Parameters
    ----------
    seglen : integer Tensor [B]
        Lengths of the segments.
    value : Tensor [N, *]
    reducer : {"sum", "mean", "max", "min"}

    Returns
    -------
    Tensor [B, *]
        0 of an empty segment, and where the largest or smallest value is infinite.
    """
    return _reduced(seglen, value, None, reducer)


def segment_softmax_ready(seglen: Any, value: Any) -> bool:
    """Whether a call of ``dgl.ops.segment_softmax`` has a kernel."""
    if not _ready(seglen, value):
        return False
    return segments_of(value.shape, _offsets_of(seglen)).on_groups(value)


def segment_softmax(seglen: Tensor, value: Tensor) -> Tensor:
    """Softmax over the rows of each segment, as ``dgl.ops.segment_softmax``.

    Parameters
    ----------
    seglen : integer Tensor [B]
        Lengths of the segments.
    value : Tensor [N, *]

    Returns
    -------
    Tensor [N, *]
    """
    out = autograd.softmax(value, segments_of(value.shape, _offsets_of(seglen)))
    if out is None:
        raise Unsupported("no-kernel")
    return out


def readout_nodes_ready(
    graph: Any, feat: Any, weight: Any = None, *, op: str = "sum", ntype: Any = None
) -> bool:
    """Whether ``dgl.readout_nodes`` with weights has a kernel; without, what it calls has."""
    if weight is None:
        return False
    data = graph.nodes[ntype].data
    return _weighted_ready(graph.batch_num_nodes(ntype), data[feat], data[weight], op)


def readout_nodes(
    graph: Any, feat: str, weight: str, *, op: str = "sum", ntype: str | None = None
) -> Tensor:
    """Reduce the nodes' features times a weight each, as ``dgl.readout_nodes``, [B, *]."""
    data = graph.nodes[ntype].data
    return _reduced(graph.batch_num_nodes(ntype), data[feat], data[weight], op)


def readout_edges_ready(
    graph: Any, feat: Any, weight: Any = None, *, op: str = "sum", etype: Any = None
) -> bool:
    """Whether ``dgl.readout_edges`` with weights has a kernel; without, what it calls has."""
    if weight is None:
        return False
    data = graph.edges[etype].data
    return _weighted_ready(graph.batch_num_edges(etype), data[feat], data[weight], op)


def readout_edges(
    graph: Any, feat: str, weight: str, *, op: str = "sum", etype: Any = None
) -> Tensor:
    """Reduce the edges' features times a weight each, as ``dgl.readout_edges``, [B, *]."""
    data = graph.edges[etype].data
    return _reduced(graph.batch_num_edges(etype), data[feat], data[weight], op)


def _ready(seglen: Any, value: Any) -> bool:
    if not runs_on_kernels(value) or not isinstance(seglen, Tensor) or seglen.dim() != 1:
        return False
    if seglen.dtype not in (torch.int32, torch.int64) or seglen.device != value.device:
        return False
    return covers(_offsets_of(seglen), value.shape[0])


def _weighted_ready(seglen: Any, value: Any, weight: Any, op: str) -> bool:
    if op not in _REDUCERS or not _ready(seglen, value) or not isinstance(weight, Tensor):
        return False
    one_each = value.dim() > 1 and weight.shape == (*value.shape[:1], *(1,) * (value.dim() - 1))
    return one_each and type(weight) is Tensor and weight.dtype == value.dtype


def _offsets_of(seglen: Tensor) -> Tensor:
    """Where segments begin and end, int64 [B + 1]; kept with their lengths."""
    if is_untracked(seglen):
        return _summed(seglen)
    now = stamp(seglen)
    with _lock:
        found = _offsets.get(seglen)
        if found is None or found[0] != now:
            found = _offsets[seglen] = (now, _summed(seglen))
        return found[1]  # type: ignore[no-any-return]


def _summed(seglen: Tensor) -> Tensor:
    # Tensors born in inference mode have no counter of their edits.
    with torch.inference_mode(False):
        return torch.nn.functional.pad(seglen.cumsum(0, dtype=torch.int64), (1, 0))


def _reduced(seglen: Tensor, value: Tensor, weight: Tensor | None, reducer: str) -> Tensor:
    graph = graph_of_rows(value, None, _offsets_of(seglen), None)
    assert graph is not None
    table = value if value.dim() > 1 else value.unsqueeze(-1)
    message, edge = ("copy", None) if weight is None else ("mul", weight.reshape(-1))
    out: Tensor = aggregate(
        graph, table, reducer, edge=edge, message=message, ties="first", nan="skip"
    )
    if reducer in ("max", "min"):
        out = out.masked_fill(out.isinf(), 0.0)
    return out if value.dim() > 1 else out.squeeze(-1)
