"""Functions that DGL has for the CPU alone, as its Python code asserts: operands go there."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from dgl import EID, DGLGraph, utils
from dgl.base import DGLError
from torch import Tensor

from gnn_backend.adapters.dgl.residence import support
from gnn_backend.adapters.dgl.residence.index import ResidentIndex, from_host
from gnn_backend.config import override
from gnn_backend.profile import count_detour


def _there() -> contextlib.AbstractContextManager[Any]:
    """Where the CPU stands in for the device, it is the CPU inside."""
    return override(residence_standin=False) if support.standin() else contextlib.nullcontext()


def _lowered(value: Any) -> Any:
    """The same with tensors on the CPU."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _lowered(item) for key, item in value.items()}
    return value


def _twin(g: DGLGraph, feature: str | None) -> DGLGraph:
    """The graph on the CPU, with one edge feature and no other; made inside :func:`_there`."""
    made = DGLGraph(g._graph.host(), g.ntypes, g.etypes)
    for etype in g.canonical_etypes if feature is not None else ():
        if feature in g.edges[etype].data:
            made.edges[etype].data[feature] = g.edges[etype].data[feature].cpu()
    return made


def select_topk(
    stock: Any, g: DGLGraph, k: Any, weight: str, nodes: Any = None, edge_dir: str = "in",
    ascending: bool = False, copy_ndata: bool = True, copy_edata: bool = True,
    output_device: Any = None,
) -> DGLGraph:  # fmt: skip
    """``dgl.sampling.select_topk``."""
    if type(g._graph) is not ResidentIndex:
        return stock(  # type: ignore[no-any-return]
            g, k, weight, nodes, edge_dir, ascending, copy_ndata, copy_edata, output_device
        )
    with _there():
        found = stock(_twin(g, weight), k, weight, _lowered(nodes), edge_dir, ascending)
        chosen = [found.edges[etype].data[EID] for etype in found.canonical_etypes]
    count_detour("SampleNeighborsTopk")
    made = DGLGraph(from_host(found._graph, g.device), g.ntypes, g.etypes)
    if copy_ndata:
        utils.set_new_frames(made, node_frames=utils.extract_node_subframes(g, g.device))
    if copy_edata:
        frames = utils.extract_edge_subframes(g, [ids.to(g.device) for ids in chosen])
        utils.set_new_frames(made, edge_frames=frames)
    return made if output_device is None else made.to(output_device)


def node2vec_random_walk(
    stock: Any, g: DGLGraph, nodes: Any, p: float, q: float, walk_length: int,
    prob: str | None = None, return_eids: bool = False,
) -> Any:  # fmt: skip
    """``dgl.sampling.node2vec_random_walk``."""
    if type(g._graph) is not ResidentIndex:
        return stock(g, nodes, p, q, walk_length, prob, return_eids)
    with _there():
        walks, edges = stock(_twin(g, prob), _lowered(nodes), p, q, walk_length, prob, True)
    count_detour("SamplingNode2vec")
    walks = walks.to(g.device)
    return (walks, edges.to(g.device)) if return_eids else walks


def pack_traces(stock: Any, traces: Tensor, types: Tensor) -> Any:
    """``dgl.sampling.pack_traces``, on the device where the traces are there."""
    if not isinstance(traces, Tensor) or not support.is_resident(traces):
        return stock(traces, types)
    if traces.dim() != 2 or types.shape != traces.shape[1:]:
        raise DGLError("Expect traces [walks, steps] and types [steps], but got "
                       f"{tuple(traces.shape)} and {tuple(types.shape)}.")  # fmt: skip
    kept = traces != -1
    lengths = kept.sum(1)
    kinds = types.to(traces.device).expand_as(traces)
    return traces[kept], kinds[kept], lengths, torch.cumsum(lengths, 0) - lengths
