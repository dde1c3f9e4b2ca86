"""Reading PyG's edge inputs: which forms are taken, what they contained, and their graph.

Self-loops are rewritten by PyG's own functions, once a graph, so that the edges are the stock
layer's to the last duplicate. ``torch_geometric`` is imported inside the functions: a caller
that holds one of its layers has imported it already.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnn_backend.adapters import stamps
from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.graph.build import expand_rows, index_dtype

_INDEX_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_SELECT_DTYPES = (torch.int32, torch.int64)  # what torch can index with


class Variant(NamedTuple):
    """What, beside the edges themselves, decides the graph.

    Attributes
    ----------
    num_src, num_dst : int
        Rows of the source and destination features.
    self_loops : bool
        Replace existing self-loops by one for each of the first min(num_src, num_dst) nodes.
    reverse : bool
        Messages run from ``edge_index[1]`` to ``edge_index[0]`` (``target_to_source``).
    fill_value : float or str or None
        Handed to PyG's rewriting of sparse adjacencies, which may reject it; decides no edge.
    """

    num_src: int
    num_dst: int
    self_loops: bool
    reverse: bool = False
    fill_value: float | str | None = None


def unsupported_form(edges: Any, *, reverse: bool, self_loops: bool) -> str | None:
    """Reason code for an edge input that has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The stock layer rejects it as well.
    """
    if _is_plain(edges):
        return _unsupported_edge_list(edges, self_loops)
    from torch_geometric import EdgeIndex
    from torch_geometric.typing import SparseTensor

    if isinstance(edges, SparseTensor):
        _require_forward(reverse)
        value = edges.storage.value()
        return "edge-features" if value is not None and value.dim() > 1 else None
    if type(edges) not in (Tensor, EdgeIndex):
        return "graph-type"
    if edges.layout in (torch.sparse_coo, torch.sparse_csr):
        return _unsupported_sparse(edges, reverse)
    if edges.layout != torch.strided:
        return "graph-type"
    return _unsupported_edge_list(edges, self_loops)


def _unsupported_edge_list(edges: Tensor, self_loops: bool) -> str | None:
    if edges.dim() != 2 or edges.shape[0] != 2:
        raise invalid("edge_index", "wrong shape", tuple(edges.shape), "[2, E]")
    if self_loops and edges.dtype == torch.bool:  # stock takes it: the added loops are integers
        return "graph-type"
    if edges.dtype not in (_INDEX_DTYPES if self_loops else _SELECT_DTYPES):
        raise invalid("edge_index", "wrong dtype", edges.dtype, "torch.int32 or torch.int64")
    return None


def _unsupported_sparse(adj_t: Tensor, reverse: bool) -> str | None:
    _require_forward(reverse)
    if adj_t.dim() - adj_t.dense_dim() != 2:
        raise invalid("edge_index", "batched adjacency", tuple(adj_t.shape), "[num_dst, num_src]")
    if adj_t.layout == torch.sparse_coo and not adj_t.is_coalesced():
        return "graph-type"
    return "edge-features" if adj_t.dense_dim() else None


def _require_forward(reverse: bool) -> None:
    if reverse:
        raise invalid("flow", "not possible on a sparse adjacency", "target_to_source",
                      "source_to_target", "Pass the transposed adjacency")  # fmt: skip


def device_of(edges: Any) -> torch.device:
    """Device of an edge input (a method, not an attribute, of torch_sparse's SparseTensor)."""
    return edges.device if isinstance(edges, Tensor) else edges.device()


def is_edge_list(edges: Any) -> bool:
    """Whether edges are given as [2, E] ids (``EdgeIndex`` included), not as an adjacency."""
    return isinstance(edges, Tensor) and edges.layout == torch.strided


def _is_plain(edges: Any) -> bool:
    """The usual form, which every call looks at several times: it is told apart first."""
    return type(edges) is Tensor and edges.layout is torch.strided


def num_edges(edges: Any) -> int:
    """Edges as the user passed them, self-loops not rewritten."""
    if _is_plain(edges) or is_edge_list(edges):
        return int(edges.shape[1])
    return int(edges._nnz() if isinstance(edges, Tensor) else edges.nnz())


def is_untracked(edges: Any) -> bool:
    """Whether in-place edits leave no trace, as in tensors made in inference mode."""
    if _is_plain(edges):
        return stamps.is_untracked(edges)
    return any(map(stamps.is_untracked, _parts(edges)))


def stamp(edges: Any) -> tuple[Any, ...]:
    """State of the content: it changes with every in-place edit that torch knows of."""
    if _is_plain(edges):
        return stamps.stamp(edges)
    shape = tuple(edges.shape) if isinstance(edges, Tensor) else tuple(edges.sparse_sizes())
    if is_edge_list(edges) and type(edges) is not Tensor:
        shape = (*edges.sparse_size(), edges.sort_order)
    parts = _parts(edges)
    return (*shape, *map(stamps.stamp, parts))


def _parts(edges: Any) -> tuple[Tensor, ...]:
    """The plain tensors that hold the structure."""
    if not isinstance(edges, Tensor):
        return tuple(edges.csr()[:2])
    if edges.layout == torch.sparse_csr:
        return edges.crow_indices(), edges.col_indices()
    if edges.layout == torch.sparse_coo:
        return (edges._indices(),)
    data = getattr(edges, "_data", None)  # an EdgeIndex wraps it, with a counter of its own
    return (edges,) if data is None else (edges, data)


def build_graph(edges: Any, variant: Variant) -> Graph:
    """Build the graph that the stock layer would pass messages on.

    Raises
    ------
    InvalidArgument
        The edges do not fit the node counts.
    """
    # Tensors born in inference mode could not take part in a later training step.
    with torch.inference_mode(False), torch.no_grad():
        if not isinstance(edges, Tensor):
            return _from_sparse_tensor(edges, variant)
        if not is_edge_list(edges):
            return _from_sparse(edges, variant)
        plain = type(edges) is Tensor
        return _from_plain(edges, variant) if plain else _from_edge_index(edges, variant)


def _with_self_loops(edges: Tensor, variant: Variant) -> Tensor:
    if not variant.self_loops:
        return edges
    from torch_geometric.utils import add_self_loops, remove_self_loops

    kept, _ = remove_self_loops(edges)
    count = min(variant.num_src, variant.num_dst)
    return add_self_loops(kept, fill_value=variant.fill_value, num_nodes=count)[0]


def _from_plain(edges: Tensor, variant: Variant) -> Graph:
    edges = _with_self_loops(edges, variant)
    if variant.reverse:
        edges = edges.flip(0)
    return Graph.from_edge_index(edges, variant.num_src, variant.num_dst)


def _from_edge_index(edges: Any, variant: Variant) -> Graph:
    """EdgeIndex: borrow the compressed form that it is sorted for, or has cached."""
    edges = _with_self_loops(edges, variant)
    plain = variant._replace(self_loops=False)
    if type(edges) is Tensor:
        return _from_plain(edges, plain)
    source, target = (1, 0) if variant.reverse else (0, 1)
    _require_size(edges.sparse_size(source), variant.num_src)
    _require_size(edges.sparse_size(target), variant.num_dst)
    by_target = edges.is_sorted_by_row if variant.reverse else edges.is_sorted_by_col
    if by_target or edges._T_perm is not None:
        (indptr, indices), perm = edges.get_csr() if variant.reverse else edges.get_csc()
        _require_size(indptr.numel() - 1, variant.num_dst)
        graph = _from_csr(indptr, indices, variant.num_src, perm)
        if _holds(graph, edges._data[source], edges._data[target], perm):
            return graph
        if by_target:  # the stock layer relies on that order as well
            raise invalid("edge_index", "not in the order it claims", edges.sort_order, "sorted")
    return _from_plain(edges._data, plain)


def _holds(graph: Graph, src: Tensor, dst: Tensor, perm: Tensor | None) -> bool:
    """Whether a borrowed graph describes the edges; caches survive in-place edits of them."""
    rows = expand_rows(graph.by_dst.indptr, graph.num_edges)
    if perm is not None:
        src, dst = src[perm], dst[perm]
    return bool((rows == dst).all() & (graph.by_dst.indices == src).all())


def _from_sparse(adj_t: Tensor, variant: Variant) -> Graph:
    adj_t = _with_self_loops(adj_t, variant)
    _require_size(adj_t.shape[0], variant.num_dst)
    _require_size(adj_t.shape[1], variant.num_src)
    if adj_t.layout == torch.sparse_csr:
        return _from_csr(adj_t.crow_indices(), adj_t.col_indices(), variant.num_src)
    return Graph.from_edge_index(adj_t._indices().flip(0), variant.num_src, variant.num_dst)


def _from_sparse_tensor(adj_t: Any, variant: Variant) -> Graph:
    if variant.self_loops:
        import torch_sparse

        adj_t = torch_sparse.set_diag(adj_t)
    _require_size(adj_t.size(0), variant.num_dst)
    _require_size(adj_t.size(1), variant.num_src)
    indptr, indices, _ = adj_t.csr()
    return _from_csr(indptr, indices, variant.num_src)


def _from_csr(
    indptr: Tensor, indices: Tensor, num_src: int, edge_ids: Tensor | None = None
) -> Graph:
    """Build from the user's own compressed arrays, sharing no memory that they may edit."""
    kept = index_dtype(indices.numel())
    return Graph.from_csr(
        _copy_if(indptr, kept),
        _copy_if(indices, torch.int32),
        num_src,
        None if edge_ids is None else _copy_if(edge_ids, kept),
    )


def _copy_if(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.clone() if tensor.dtype == dtype else tensor


def _require_size(size: int | None, expected: int) -> None:
    if size is not None and size != expected:
        raise invalid("edge_index", "wrong sparse size", size, f"{expected}, the feature rows")
