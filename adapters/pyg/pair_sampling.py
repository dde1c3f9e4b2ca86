"""The pairs of nodes that ``SuperGATConv`` takes for its attention loss, found without its edges.

In each step stock makes the edges symmetric and sorts them, and looks every draw up among all of
them. Here the graph keeps its rows in order, and the numbers are those of Python's generator, so
that pairs and generator are stock's to the bit. The functions that stock would call are known by
the text of their sources; the layer's own method is called where one of them is not.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.graph.edge_set import EdgeSet, edge_set
from gnn_backend.runtime import python_random

_LAYER = "torch_geometric.nn.conv.supergat_conv"
_UTILITIES = "torch_geometric.utils._negative_sampling"
_CALLED = ("negative_sampling", "is_undirected", "to_undirected")
_HELPERS = ("sample", "edge_index_to_vector", "vector_to_edge_index")
_SOURCES = (  # SHA-256 of the functions that decide what is drawn
    "11757a11749f3726de6fc2cf4857bee42541cc80ab4afd2bfdb5441abcbffa01",  # 2.6
    "dee94117d74d0f3b64ce9ff8cffbf24da974927a1124742230129c028e1f1b90",  # 2.7 and 2.8
)
_TRIES = 3
_EXCESS = 1.1  # of the draws over the pairs that are wanted


def takes_all_edges(conv: Any) -> bool:
    """Whether the layer's ``positive_sampling`` returns what it is given, and draws nothing."""
    dropout = getattr(sys.modules[_LAYER], "dropout_edge", None)
    known = getattr(dropout, "__module__", None) == "torch_geometric.utils.dropout"
    return known and conv.edge_sample_ratio == 1


def absent_pairs(conv: Any, edge_index: Any, graph: Graph, batch: Tensor | None) -> Tensor | None:
    """What the layer's ``negative_sampling`` would draw, or None where it must be called.

    Parameters
    ----------
    conv : torch_geometric.nn.SuperGATConv
        Whose class did not override the method.
    edge_index : Tensor [2, E]
        As the caller gave it.
    graph : Graph
        Of these edges with the layer's self-loops; reversed where messages flow so.
    batch : Tensor [N], optional

    Returns
    -------
    int32 [2, P] on the graph's device, or None
    """
    if batch is not None or type(edge_index) is not Tensor or edge_index.dtype is not torch.int64:
        return None
    wanted = int(conv.neg_sample_ratio * conv.edge_sample_ratio * graph.num_edges)
    if wanted < 1 or not _is_known(type(conv)):
        return None
    found = edge_set(graph)
    either = not conv.is_undirected and not found.symmetric
    pairs = _drawn(found, graph.num_dst, wanted, either, conv.flow == "target_to_source")
    return None if pairs is None else pairs.to(graph.device)


def _is_known(cls: Any) -> bool:
    layer, utilities = sys.modules[_LAYER], sys.modules[_UTILITIES]
    called = (getattr(layer, name, None) for name in _CALLED)
    helpers = (getattr(utilities, name, None) for name in _HELPERS)
    return _digest(cls.negative_sampling, *called, *helpers) in _SOURCES


@functools.lru_cache(maxsize=8)
def _digest(*functions: Any) -> str | None:
    """SHA-256 of the sources of some functions; None: one of them has none."""
    try:
        return hashlib.sha256("".join(map(inspect.getsource, functions)).encode()).hexdigest()
    except (OSError, TypeError):
        return None


def _drawn(edges: EdgeSet, nodes: int, wanted: int, either: bool, swapped: bool) -> Tensor | None:
    pairs = torch.empty(2, 0, dtype=torch.int32)
    population = nodes * (nodes - 1)
    joined = edges.pairs if either else edges.edges
    if joined >= population:
        return pairs
    size = int(_EXCESS * wanted / (1.0 - joined / population))
    for _ in range(_TRIES):
        all_of_them = size >= population
        numbers = np.arange(population) if all_of_them else python_random.sample(population, size)
        if numbers is None:
            return None
        if pairs.shape[1]:
            numbers = numbers[~np.isin(numbers, _numbered(pairs, nodes))]
        more = edges.absent(numbers, wanted - pairs.shape[1], either=either, swapped=swapped)
        pairs = torch.cat([pairs, more], dim=1) if pairs.shape[1] else more
        if pairs.shape[1] == wanted:
            break
    return pairs


def _numbered(pairs: Tensor, nodes: int) -> np.ndarray:
    """Numbers of pairs of nodes, as :meth:`EdgeSet.absent` takes them."""
    first, second = pairs.long()
    return (first * (nodes - 1) + second - (second > first).long()).numpy()
