"""What a value has one row for, and how a row of one domain finds its row in another.

An edge knows its source, its destination and its type; so it knows the pairs (source, edge type)
and (destination, edge type), of which many edges share one. Nodes know their node type. A domain is
*coarser* than another if every row of that one belongs to exactly one of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import cache


class Domain(Enum):
    """What a value has one row for."""

    PARAM = "parameter"  # one row in all
    NODE_TYPE = "node type"
    EDGE_TYPE = "edge type"
    SRC = "source"
    DST = "destination"
    SRC_PAIR = "(source, edge type)"  # those that have an edge
    DST_PAIR = "(destination, edge type)"
    EDGE = "edge"

    __hash__ = object.__hash__  # that of enumerations is a function in Python

    def __repr__(self) -> str:
        return self.name


#: Each domain with the next coarser ones; what is coarser follows by going on.
_STEPS: dict[Domain, tuple[Domain, ...]] = {
    Domain.EDGE: (Domain.SRC_PAIR, Domain.DST_PAIR),
    Domain.SRC_PAIR: (Domain.SRC, Domain.EDGE_TYPE),
    Domain.DST_PAIR: (Domain.DST, Domain.EDGE_TYPE),
    Domain.SRC: (Domain.NODE_TYPE,),
    Domain.DST: (Domain.NODE_TYPE,),
    Domain.NODE_TYPE: (Domain.PARAM,),
    Domain.EDGE_TYPE: (Domain.PARAM,),
    Domain.PARAM: (),
}


@cache
def coarser(domain: Domain) -> frozenset[Domain]:
    """Every domain that has one row for each row of ``domain``, itself among them."""
    found = {domain}
    for step in _STEPS[domain]:
        found |= coarser(step)
    return frozenset(found)


@cache
def reads(fine: Domain, coarse: Domain) -> bool:
    """Whether a row of ``fine`` belongs to exactly one row of ``coarse``.

    An edge has two node types, that of its source and that of its destination, so what has a row
    for each node type is read by way of the one or the other node, never by an edge itself.
    """
    if coarse is Domain.NODE_TYPE:
        single = (Domain.SRC, Domain.DST, Domain.SRC_PAIR, Domain.DST_PAIR, Domain.NODE_TYPE)
        return fine in single
    return coarse in coarser(fine)


def join(domains: Iterable[Domain]) -> Domain:
    """The coarsest domain that reads all of these.

    Raises
    ------
    ValueError
        There is none, as for node types beside an edge.
    """
    wanted = list(domains)
    able = [d for d in Domain if all(reads(d, w) for w in wanted)]
    for domain in able:
        if all(reads(other, domain) for other in able):
            return domain
    if not able:
        raise ValueError(f"no domain reads all of {', '.join(d.value for d in wanted)}")
    # Node types alone are read by sources and destinations, neither coarser than the other.
    raise ValueError(f"several domains read {', '.join(d.value for d in wanted)}: {able}")
