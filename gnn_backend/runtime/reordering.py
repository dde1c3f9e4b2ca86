"""The order of the rows that an operator's call runs with, as the configuration has it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_backend.config import get_config
from gnn_backend.graph import Graph
from gnn_backend.graph.locality import by_length, sample_locality
from gnn_backend.profile import note_choice
from gnn_backend.runtime import reorder_choice
from gnn_backend.runtime.reorder_choice import Caches
from gnn_backend.runtime.selection import CHUNKS

FIRST_LOOK = 16  # calls on a graph before it is looked at
LOOKS = 4  # times as many before it is looked at again
_COMMUNITY_NS = 40.0  # an edge, on a GPU
_SMALL = 1 << 17  # edges, that take no time worth saving


def arranged(graph: Graph, like: Tensor, row_values: int) -> Graph:
    """The graph in the order that its rows are to be gone over in.

    With ``reorder="auto"`` only on CUDA, where the order found is predicted to be faster by
    a margin (:mod:`gnn_backend.runtime.reorder_choice`), and where the calls so far would already
    have saved the time that finding it takes: mini-batches, used once, keep theirs. A graph that
    was reordered by hand stays as it is.

    Parameters
    ----------
    graph : Graph
    like : Tensor
        Of the device and dtype of the table that edges read a row of.
    row_values : int
        Values of a row.
    """
    method = get_config().reorder
    if method == "none" or graph.order is not None:
        return graph
    if method == "auto":
        return _chosen(graph, like.device, row_values * like.element_size())
    note_choice(lambda: f"rows in {method} order, as configured")
    return graph.reorder(method)


@dataclass
class _Use:
    """What is known of a graph with rows of some length; kept among its plans.

    ``ordered`` is None for the graph itself, which would otherwise hold itself.
    """

    calls: int = 0
    next_look: int | None = FIRST_LOOK
    ordered: Graph | None = None


def _chosen(graph: Graph, device: torch.device, row_bytes: int) -> Graph:
    if device.type != "cuda" or graph.num_edges < _SMALL:
        return graph
    use: _Use = graph.plans.setdefault(("reorder", row_bytes), _Use())
    use.calls += 1
    due = use.next_look is not None and use.calls >= use.next_look
    if due and not torch.cuda.is_current_stream_capturing():
        found, final = look(graph, row_bytes, use.calls, caches_of(device))
        use.ordered = None if found is graph else found
        use.next_look = None if final else use.calls * LOOKS
    return use.ordered or graph


def caches_of(device: torch.device) -> Caches:
    """The caches of a GPU; all but the size of L2 as on an H200."""
    properties = torch.cuda.get_device_properties(device)
    return Caches(l2=getattr(properties, "L2_cache_size", Caches.l2) or Caches.l2)


def look(graph: Graph, row_bytes: int, calls: int, caches: Caches) -> tuple[Graph, bool]:
    """The graph in the order that is predicted to be fastest, and whether that is the last word.

    It is not while communities might gain, but have not yet in ``calls`` calls.
    """
    csr, columns = graph.by_dst, graph.num_src
    degree = csr.indptr.diff()
    before = sample_locality(csr, columns, by_length(degree, CHUNKS[-1]))
    natural = sample_locality(csr, columns)
    gains = {"natural": reorder_choice.predicted_gain(before, natural, row_bytes, caches)}
    most = reorder_choice.possible_gain(before, row_bytes, caches)
    final = most <= reorder_choice.MARGIN * max(1.0, gains["natural"])
    if not final:
        saved = graph.num_edges * calls * reorder_choice.edge_time(before, row_bytes, caches)
        final = saved * (1 - 1 / most) > graph.num_edges * _COMMUNITY_NS * 1e3
        if final:
            order = graph.reorder("community").order
            assert order is not None
            after = sample_locality(csr, columns, order.dst)
            gains["community"] = reorder_choice.predicted_gain(before, after, row_bytes, caches)
    method, gain = max(gains.items(), key=lambda item: item[1])
    if gain <= reorder_choice.MARGIN:
        return graph, final
    note_choice(lambda: f"rows in {method} order, predicted {gain:.2f} times as fast")
    return graph.reorder(method), final
