"""Sums over rows by cuSPARSE, with everything that a product needs kept with the graph.

A graph keeps at most ``MOST_PLANS`` products (one a direction, width and kind of values),
each with descriptors and a workspace for every stream that used it, of which the last
``MOST_LANES`` are kept. They hold the tensors that their descriptors point at, and are freed with
the graph.

Weights change from call to call and have to lie in the order of the CSR: a gather reads each with
its place (4 bytes and, in another order than the caller's, a sector of 32) and writes it. Sums
without weights read a table of ones, since cuSPARSE knows no matrix without values: with a 4-byte
index and a row of 64 values in float32, 1.5 % more bytes.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from gnn_backend.graph import CSR, Graph
from gnn_backend.graph.build import expand_rows
from gnn_backend.graph.graph import Direction
from gnn_backend.profile import count_launch
from gnn_backend.runtime.sparse.cusparse_library import Library, library

MOST_PLANS = 8
MOST_LANES = 4
_lock = threading.Lock()


def cannot(
    graph: Graph, dtype: torch.dtype, width: int, reduce: str, values_an_edge: int
) -> str | None:
    """Why cuSPARSE cannot take a sum; None if it can.

    Parameters
    ----------
    graph : Graph
    dtype : torch.dtype
    width : int
        Columns of a row.
    reduce : {"sum", "mean"}
    values_an_edge : int
        0 without weights.
    """
    if dtype != torch.float32:  # hubs are added up in 16 bits, at random, and are off by percents
        return f"its sums of {dtype} are not to be had, or not precise"
    if graph.device.type != "cuda" or library_of(graph.device) is None:
        return f"there is no cuSPARSE on {graph.device}"
    if values_an_edge > 1:
        return "an edge has several weights"
    if reduce == "mean" and values_an_edge:
        return "means of weighted rows would be rounded twice"
    if graph.by_dst.indptr.dtype != torch.int32:
        return "edges are counted in 64 bits"
    return None if width * graph.num_edges else "there is nothing to multiply"


def library_of(device: torch.device) -> Library | None:
    """cuSPARSE on a device, None where there is none."""
    if device.type != "cuda":
        return None
    return library(torch.cuda.current_device() if device.index is None else device.index)


def product(
    graph: Graph, direction: Direction, x: Tensor, weights: Tensor | None = None, *,
    mean: bool = False,
) -> Tensor:  # fmt: skip
    """Sum, or mean, of the rows of ``x`` that the edges of each row name.

    Parameters
    ----------
    graph : Graph
    direction : {"dst", "src"}
    x : Tensor [nodes at the other end, width]
        Contiguous.
    weights : Tensor [E], optional
        In the caller's edge order, of the dtype of ``x``.
    mean : bool

    Returns
    -------
    Tensor [rows, width]
    """
    csr = graph.csr(direction)
    kind = "weights" if weights is not None else "means" if mean else "ones"
    key = (direction, x.shape[1], kind)
    plan = _kept(graph, key, lambda: _plan(graph, direction, x, kind))
    if weights is None:
        return plan.run(x)
    ids = csr.edge_ids
    return plan.run(x, weights if ids is None else weights.index_select(0, ids))


def _plan(graph: Graph, direction: Direction, x: Tensor, kind: str) -> Plan:
    found = library_of(graph.device)
    assert found is not None  # see `cannot`
    csr, values = graph.csr(direction), None
    if kind == "ones":
        values = _values(graph, (kind, x.dtype), lambda: x.new_ones(graph.num_edges))
    elif kind == "means":
        values = _values(graph, (kind, direction, x.dtype), lambda: _shares(csr, x.dtype))
    return Plan(found, csr, x.shape[0], x.shape[1], values)


def _shares(csr: CSR, dtype: torch.dtype) -> Tensor:
    """1 / degree of the row of each edge, in the order of the CSR."""
    shares = csr.indptr.diff().to(dtype).reciprocal()
    return shares.index_select(0, expand_rows(csr.indptr, csr.indices.numel()))


def _values(graph: Graph, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
    """Values that several products share."""
    name = ("cuSPARSE values", key)
    found = graph.plans.get(name)
    if found is None:
        found = graph.plans[name] = make()
    return found  # type: ignore[no-any-return]


def _kept(graph: Graph, key: Hashable, make: Callable[[], Plan]) -> Plan:
    """A product of the graph's cache; the one that was used longest ago gives way."""
    with _lock:
        plans: OrderedDict[Hashable, Plan] = graph.plans.setdefault("cuSPARSE", OrderedDict())
        plan = plans.get(key)
        if plan is not None:
            plans.move_to_end(key)
            return plan
    made = make()
    with _lock:
        plan = plans.setdefault(key, made)
        while len(plans) > MOST_PLANS:
            plans.popitem(last=False)
    return plan


class Plan:
    """Products of one CSR with float32 tables of one shape.

    Parameters
    ----------
    library : Library
    csr : CSR
    columns, width : int
        Rows and columns of the tables.
    values : Tensor [E] or None
        What the edges are worth; None where each call says so.
    """

    def __init__(
        self, library: Library, csr: CSR, columns: int, width: int, values: Tensor | None = None
    ) -> None:
        self.library, self.csr, self.values = library, csr, values
        self.columns, self.width = columns, width
        self._lanes: OrderedDict[int, _Lane] = OrderedDict()

    @property
    def num_rows(self) -> int:
        """Rows of a result."""
        return self.csr.indptr.numel() - 1

    def run(self, x: Tensor, values: Tensor | None = None) -> Tensor:
        """The product with ``x`` [columns, width], on the current stream.

        While a CUDA graph is captured the workspace is of the graph's own memory.
        """
        values = self.values if values is None else values
        assert values is not None
        out = x.new_empty(self.num_rows, self.width)
        if x.device.type == "cuda" and torch.cuda.current_device() != x.device.index:
            with torch.cuda.device(x.device):
                self._multiply(x, values, out)
        else:
            self._multiply(x, values, out)
        count_launch(x.device.type, "cusparseSpMM")
        return out

    def _multiply(self, x: Tensor, values: Tensor, out: Tensor) -> None:
        stream, capturing = _stream(x.device)
        with self.library.lock:
            lane = None if capturing else self._lanes.get(stream)
            if lane is None:
                lane = _Lane(self, x, values, out)
                if not capturing:
                    self._lanes[stream] = lane
                    while len(self._lanes) > MOST_LANES:
                        self._lanes.popitem(last=False)
            else:
                self._lanes.move_to_end(stream)
            lane.run(x, values, out, stream)

    def workspace_bytes(self) -> int:
        """Bytes of the workspaces, of all streams."""
        return sum(lane.workspace.numel() for lane in self._lanes.values())


class _Lane:
    """Descriptors and workspace of one stream, where products follow each other."""

    def __init__(self, plan: Plan, x: Tensor, values: Tensor, out: Tensor) -> None:
        library, csr = plan.library, plan.csr
        rows, edges = plan.num_rows, csr.indices.numel()
        place = (csr.indptr.data_ptr(), csr.indices.data_ptr(), values.data_ptr())
        self._library = library
        self._csr = library.csr(rows, plan.columns, edges, *place)
        self._x = library.dense(plan.columns, plan.width, x.data_ptr())
        self._out = library.dense(rows, plan.width, out.data_ptr())
        self._matrices = (self._csr, self._x, self._out)
        weakref.finalize(self, library.free, *self._matrices).atexit = False
        size = library.workspace_bytes(*self._matrices)
        self.workspace = torch.empty(max(1, size), dtype=torch.uint8, device=x.device)

    def run(self, x: Tensor, values: Tensor, out: Tensor, stream: int) -> None:
        """``out = csr @ x``."""
        library = self._library
        library.set_values(self._csr, values.data_ptr())
        library.set_data(self._x, x.data_ptr())
        library.set_data(self._out, out.data_ptr())
        library.multiply(*self._matrices, self.workspace.data_ptr(), stream)


def _stream(device: torch.device) -> tuple[int, bool]:
    """Torch's current stream, and whether it is captured."""
    if device.type != "cuda":
        return 0, False
    return (
        torch._C._cuda_getCurrentRawStream(device.index),
        torch.cuda.is_current_stream_capturing(),
    )
