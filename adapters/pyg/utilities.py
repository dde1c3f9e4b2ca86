"""PyG's ``scatter``, ``segment``, ``softmax`` and aggregation modules on the device's kernels.

Pools and the simple aggregation modules call ``scatter``, and so run on kernels as well. What has
no kernel is not counted as a fallback, for no layer fell back: the profile lists it among the
operators that the host answered itself.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gnn_backend.adapters.grouping import covers, graph_of_rows, runs_on_kernels
from gnn_backend.adapters.pyg.reductions import aggregation_reason, reduce_by
from gnn_backend.adapters.torch_scatter import autograd
from gnn_backend.adapters.torch_scatter.place import Place, place_of, segments_of
from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph
from gnn_backend.ops.aggregation import aggregate

_NAMES = {
    "sum": "sum", "add": "sum", "mean": "mean", "mul": "mul",
    "max": "max", "amax": "max", "min": "min", "amin": "min",
}  # fmt: skip


# ---------------------------------------------------------------------- functions


def scatter_ready(
    src: Any, index: Any, dim: int = 0, dim_size: int | None = None, reduce: str = "sum"
) -> bool:
    """Whether a call of ``utils.scatter`` has a kernel."""
    return reduce in _NAMES and _rows_graph(src, index, None, dim_size, dim) is not None


def scatter(
    src: Tensor, index: Tensor, dim: int = 0, dim_size: int | None = None, reduce: str = "sum"
) -> Tensor:
    """Reduce rows with equal index, as ``torch_geometric.utils.scatter``.

    Parameters
    ----------
    src : Tensor [E, *]
    index : Tensor [E]
    dim : int
        0, or the same from behind.
    dim_size : int, optional
    reduce : {"sum", "add", "mean", "mul", "max", "amax", "min", "amin"}

    Returns
    -------
    Tensor [dim_size, *]
    """
    return _reduced(_rows_graph(src, index, None, dim_size, dim), src, _NAMES[reduce])


def segment_ready(src: Any, ptr: Any, reduce: str = "sum") -> bool:
    """Whether a call of ``utils.segment`` has a kernel."""
    return reduce in _NAMES and _rows_graph(src, None, ptr, None, 0) is not None


def segment(src: Tensor, ptr: Tensor, reduce: str = "sum") -> Tensor:
    """Reduce rows between offsets, as ``torch_geometric.utils.segment``.

    Parameters
    ----------
    src : Tensor [E, *]
    ptr : Tensor [N + 1]
    reduce : {"sum", "mean", "max", "min"}

    Returns
    -------
    Tensor [N, *]
    """
    return _reduced(_rows_graph(src, None, ptr, None, 0), src, _NAMES[reduce])


def softmax_ready(
    src: Any, index: Any = None, ptr: Any = None, num_nodes: int | None = None, dim: int = 0
) -> bool:
    """Whether a call of ``utils.softmax`` has a kernel."""
    if not runs_on_kernels(src) or not -src.dim() <= dim < src.dim():
        return False
    place = _softmax_place(src, index, ptr, num_nodes, dim)
    return place is not None and place.on_groups(src)


def softmax(
    src: Tensor,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    num_nodes: int | None = None,
    dim: int = 0,
) -> Tensor:
    """Softmax over values with equal index, as ``torch_geometric.utils.softmax``.

    Parameters
    ----------
    src : Tensor [*, E, *]
    index : Tensor [E], optional
    ptr : Tensor [N + 1], optional
        Offsets; take the place of ``index``.
    num_nodes : int, optional
    dim : int

    Returns
    -------
    Tensor [*, E, *]
    """
    place = _softmax_place(src, index, ptr, num_nodes, dim)
    out = None if place is None else autograd.softmax(src, place)
    if out is None:
        raise Unsupported("no-kernel")
    return out


def _softmax_place(src: Tensor, index: Any, ptr: Any, count: int | None, dim: int) -> Place | None:
    if isinstance(ptr, Tensor):
        # Offsets that leave rows out are torch's affair.
        at_rows = ptr.dim() == 1 and dim % src.dim() == 0 and covers(ptr, src.shape[0])
        return segments_of(src.shape, ptr) if at_rows else None
    if not isinstance(index, Tensor) or index.dim() != 1:
        return None
    return place_of(src, index, dim, dim_size=count)


def _rows_graph(src: Any, index: Any, ptr: Any, count: int | None, dim: int) -> Graph | None:
    if not runs_on_kernels(src) or dim not in (0, -src.dim()):
        return None
    if not all(t is None or isinstance(t, Tensor) for t in (index, ptr)):
        return None
    return graph_of_rows(src, index, ptr, count)


def _reduced(graph: Graph | None, src: Tensor, name: str) -> Tensor:
    assert graph is not None
    out: Tensor = aggregate(graph, src if src.dim() > 1 else src.unsqueeze(-1), name)
    return out if src.dim() > 1 else out.squeeze(-1)


# ---------------------------------------------------------------------- modules


def module_ready(
    module: Any,
    x: Any,
    index: Any = None,
    ptr: Any = None,
    dim_size: int | None = None,
    dim: int = -2,
) -> bool:
    """Whether a call of an aggregation module's ``forward`` has a kernel."""
    if not isinstance(x, Tensor) or x.dim() != 2:
        return False
    if aggregation_reason(module) is not None:
        return False
    return _rows_graph(x, index, ptr, dim_size, dim) is not None


def aggregation(
    module: Any,
    x: Tensor,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    dim_size: int | None = None,
    dim: int = -2,
) -> Tensor:
    """An aggregation module's ``forward`` in as few passes as there are temperatures and powers.

    Parameters
    ----------
    module : torch_geometric.nn.Aggregation
    x : Tensor [E, F]
    index : Tensor [E], optional
    ptr : Tensor [N + 1], optional
    dim_size : int, optional
    dim : int
        0 or -2.

    Returns
    -------
    Tensor [N, *]
    """
    graph = _rows_graph(x, index, ptr, dim_size, dim)
    assert graph is not None
    return reduce_by(module, graph, x)
