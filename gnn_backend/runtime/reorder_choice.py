"""Whether another order of the rows is faster: a model of the bytes that each cache lets through.

The time of a pass over the rows is that of a gather: every edge reads a row through the caches of
the multiprocessors (L1), and what is not there from L2, and what is not there from memory. How much
is there follows from how many distinct neighbours successive edges have (:class:`Locality`), for L1
among the edges that a block works on, for L2 among those that the whole GPU does.

The speeds are those at which an H200 gathers rows of 512 bytes: tolokers, whose table fits L2 but
not L1, 11.9 bytes a picosecond; a block model whose blocks fit L1 16.7; memory alone 4.2. They are
added up as times per byte. Estimates, to be fitted to what ``bench reorder`` measures.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnn_backend.graph.locality import Locality

MARGIN = 1.1  # predicted gain below which the order stays: about the error of the model
_USABLE = 0.5  # share of a cache that rows stay in, beside results and ids
_EDGE_BYTES = 4  # an edge's id, streamed from memory


@dataclass(frozen=True)
class Caches:
    """Sizes in bytes, and speeds in bytes a picosecond of what each level lets through.

    Attributes
    ----------
    l1, l2 : int
        L1 as one block of threads sees it.
    l1_speed, l2_speed, memory_speed : float
    """

    l1: int = 64 << 10
    l2: int = 50 << 20
    l1_speed: float = 33.0
    l2_speed: float = 18.6
    memory_speed: float = 6.5


def edge_time(locality: Locality, row_bytes: int, caches: Caches = Caches()) -> float:
    """Predicted picoseconds an edge of a pass that reads a row of ``row_bytes`` for each."""
    from_l2 = locality.misses(_USABLE * caches.l1 / row_bytes)
    from_memory = locality.misses(_USABLE * caches.l2 / row_bytes)
    a_byte = 1 / caches.l1_speed + from_l2 / caches.l2_speed + from_memory / caches.memory_speed
    return row_bytes * a_byte + _EDGE_BYTES / caches.memory_speed


def predicted_gain(
    before: Locality, after: Locality, row_bytes: int, caches: Caches = Caches()
) -> float:
    """Time of a pass in the first order divided by that in the second.

    Parameters
    ----------
    before, after : Locality
        Of the same rows.
    row_bytes : int
        Bytes that an edge reads of its neighbour: all heads.
    caches : Caches
        By default an H200's.
    """
    return edge_time(before, row_bytes, caches) / edge_time(after, row_bytes, caches)


def possible_gain(before: Locality, row_bytes: int, caches: Caches = Caches()) -> float:
    """The same of an order in which no row is read twice from L2 or from memory."""
    once = min(1.0, before.num_columns / max(1, before.num_edges))
    best = before._replace(windows=((1, once),))
    return predicted_gain(before, best, row_bytes, caches)
