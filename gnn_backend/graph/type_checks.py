"""Types of edges and nodes, checked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph.checks import check_integer, node_count
from gnn_backend.graph.graph import Graph
from gnn_backend.ir.domains import Domain


@dataclass(frozen=True)
class Types:
    """Types of edges, sources and destinations.

    Attributes
    ----------
    edge, src, dst : int32 Tensor or None
        Of each, by its number; None: all have type 0.
    num_edge_types, num_node_types : int
    ascending : frozenset of Domain
        Those of ``EDGE``, ``SRC``, ``DST`` whose types ascend.
    """

    edge: Tensor | None
    src: Tensor | None
    dst: Tensor | None
    num_edge_types: int
    num_node_types: int
    ascending: frozenset[Domain]


def checked_types(
    graph: Graph,
    edge_types: Tensor | None,
    num_edge_types: int | None,
    src_types: Tensor | None,
    dst_types: Tensor | None,
    num_node_types: int | None,
) -> Types:
    """The types of a graph's edges and nodes, with one device-to-host copy for all checks.

    Raises
    ------
    InvalidArgument
        Wrong shape, dtype or device, or a type out of range.
    """
    given = {
        Domain.EDGE: ("edge_types", edge_types, graph.num_edges, "num_edges"),
        Domain.SRC: ("src_types", src_types, graph.num_src, "num_src"),
        Domain.DST: ("dst_types", dst_types, graph.num_dst, "num_dst"),
    }
    for name, types, length, what in given.values():
        _check(name, types, length, what, graph.device)
    seen = _survey({domain: types for domain, (_, types, _, _) in given.items()})
    edges = _count("num_edge_types", num_edge_types, [Domain.EDGE], seen)
    nodes = _count("num_node_types", num_node_types, [Domain.SRC, Domain.DST], seen)
    for domain, (low, high, _) in seen.items():
        count = edges if domain is Domain.EDGE else nodes
        if low < 0 or high >= count:
            got = f"types {low} to {high}"
            raise invalid(given[domain][0], "type out of range", got, f"0 to {count - 1}")
    ascending = frozenset(domain for domain, report in seen.items() if report[2])
    return Types(_own(edge_types), _own(src_types), _own(dst_types), edges, nodes, ascending)


def _check(name: str, types: Tensor | None, length: int, what: str, device: torch.device) -> None:
    if types is None:
        return
    check_integer(name, types)
    if types.shape != (length,):
        raise invalid(name, "wrong shape", tuple(types.shape), f"[{what}], ({length},)")
    if types.device != device:
        raise invalid(name, "on another device than the graph", types.device, device)


def _survey(given: dict[Domain, Tensor | None]) -> dict[Domain, tuple[int, int, bool]]:
    """Smallest, largest, and whether they ascend, of the types that are given and not empty."""
    present = {domain: types for domain, types in given.items() if types is not None and len(types)}
    if not present:
        return {}
    found = [
        torch.stack([*torch.aminmax(types), (types[1:] >= types[:-1]).all().to(types.dtype)]).long()
        for types in present.values()
    ]
    rows = torch.stack(found).tolist()
    return {d: (low, high, bool(up)) for d, (low, high, up) in zip(present, rows, strict=True)}


def _count(
    name: str, count: int | None, domains: list[Domain], seen: dict[Domain, tuple[int, int, bool]]
) -> int:
    if count is None:
        return max(1, 1 + max((seen[d][1] for d in domains if d in seen), default=0))
    count = node_count(name, count, torch.empty(0))
    if count < 1:
        raise invalid(name, "no type", count, "1 or more")
    return count


def _own(types: Tensor | None) -> Tensor | None:
    """As int32, and not the tensor that the caller may write to."""
    if types is None:
        return None
    return types.detach().as_subclass(Tensor).to(torch.int32, copy=True).contiguous()
