"""Orders of a graph's rows that bring together rows with neighbours in common.

An order decides when a row is worked on, not where its tables lie. A neighbour's row is hundreds of
bytes, whole cache lines, so that it costs the same wherever it stands; what counts is that it is
still in a cache when the next row asks for it. Moving the tables as well would cost a pass over
both of them on every call, more than there is to gain where rows have few neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph.build import expand_rows
from gnn_backend.graph.communities import Edges, SortedEdges, order_of
from gnn_backend.graph.order import Order

if TYPE_CHECKING:
    from gnn_backend.graph.graph import Graph

METHODS = ("natural", "degree", "rcm", "community")


def make_order(graph: Graph, method: str, bipartite: bool) -> Order:
    """Find an order of the rows; see :meth:`Graph.reorder`.

    ``natural`` and ``degree`` cost a sort of the degrees, ``community`` sorts of the edges, and
    ``rcm`` a copy to the CPU and a breadth-first search in one thread.

    Parameters
    ----------
    graph : Graph
    method : str
        Of ``METHODS``.
    bipartite : bool

    Raises
    ------
    InvalidArgument
        An unknown method, or one set of nodes with two counts.
    ImportError
        ``rcm`` without SciPy.
    """
    if method not in METHODS:
        raise invalid("method", "unknown", repr(method), f"one of {', '.join(METHODS)}")
    if not bipartite and graph.num_src != graph.num_dst:
        got = f"{graph.num_src} sources and {graph.num_dst} destinations"
        raise invalid("bipartite", "False for two sets of nodes", got, "equal counts, or True")
    if method == "natural":
        numbers = (torch.arange(count, dtype=torch.int32, device=graph.device)
                   for count in (graph.num_dst, graph.num_src))  # fmt: skip
        return Order(method, bipartite, *numbers)
    if method == "degree":
        degrees = (csr.indptr.diff() for csr in (graph.by_dst, graph.by_src))
        sorts = (degree.argsort(descending=True, stable=True).int() for degree in degrees)
        return Order(method, bipartite, *sorts)
    find = _cuthill_mckee if method == "rcm" else _communities
    nodes = find(graph, bipartite).to(graph.device)
    if not bipartite:
        order = nodes.int()
        return Order(method, bipartite, order, order)
    own = nodes >= graph.num_src
    return Order(method, bipartite, (nodes[own] - graph.num_src).int(), nodes[~own].int())


def _count(graph: Graph, bipartite: bool) -> int:
    """Nodes of the graph without directions; of a bipartite one the sources come first."""
    return graph.num_src + graph.num_dst if bipartite else graph.num_dst


def _ends(graph: Graph, bipartite: bool) -> tuple[Tensor, Tensor]:
    """Both ends of every edge, both ways, int32 [2 E]: the graph without directions."""
    by_dst, by_src = graph.by_dst, graph.by_src
    rows = expand_rows(by_dst.indptr, graph.num_edges), expand_rows(by_src.indptr, graph.num_edges)
    columns = by_dst.indices, by_src.indices
    if bipartite:
        rows, columns = (rows[0] + graph.num_src, rows[1]), (columns[0], columns[1] + graph.num_src)
    return torch.cat(rows), torch.cat(columns)


def _communities(graph: Graph, bipartite: bool) -> Tensor:
    if graph.device.type == "cuda":
        edges: Edges = SortedEdges(*_ends(graph, bipartite))
    else:
        from gnn_backend.graph.counted_edges import CountedEdges

        edges = CountedEdges.of(graph, bipartite)
    return order_of(edges, _count(graph, bipartite), graph.device)


def _cuthill_mckee(graph: Graph, bipartite: bool) -> Tensor:
    """Reverse Cuthill-McKee, by SciPy."""
    try:
        from scipy.sparse import coo_array, csr_array
        from scipy.sparse.csgraph import reverse_cuthill_mckee
    except ImportError as error:
        raise ImportError(
            "reorder('rcm') takes SciPy, which is not installed; install scipy, or use 'community'"
        ) from error
    count = _count(graph, bipartite)
    if not count:
        return torch.empty(0, dtype=torch.int64)
    rows, columns = _ends(graph, bipartite)
    ends = rows.cpu().numpy(), columns.cpu().numpy()
    ones = torch.ones(rows.numel(), dtype=torch.int8).numpy()
    matrix = csr_array(coo_array((ones, ends), shape=(count, count)))
    return torch.from_numpy(reverse_cuthill_mckee(matrix, symmetric_mode=True).astype("int64"))
