"""What both hosts' wrappers over relations share: which relations run together, and running them.

Relations whose layers are of one :class:`Kind` are one batch. A wrapper's layers are rarely of more
kinds than its node types have widths, so that launches do not grow with the number of relations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gnn_backend.dispatch import active_mode
from gnn_backend.errors import Unsupported
from gnn_backend.layers.hetero.union import Rows, Union
from gnn_backend.runtime import launch

PLAIN_TENSORS = (Tensor, nn.Parameter)
#: Functions that may be applied to the rows of all relations at once.
ELEMENTWISE = frozenset(
    {torch.relu, torch.tanh, torch.sigmoid, nn.functional.relu, nn.functional.elu,
     nn.functional.leaky_relu, nn.functional.gelu, nn.functional.selu, nn.functional.silu}
)  # fmt: skip
Run = Callable[[Sequence[Any], Union, Rows, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Kind:
    """What layers must have in common to run together; equal kinds do.

    Attributes
    ----------
    run : callable
        ``(convs, union, rows, x_src, x_dst) -> [rows, ...]``.
    config : tuple
        Options and shapes of parameters.
    widths : (int, int or None)
        Of sources' and destinations' features; None: these are not read.
    loops : {"", "replaced", "own"}
        Self-loops that the layer adds: in the place of the graph's, or from the destination's own
        features.
    elementwise : callable or None
        What comes last.
    sums : bool
        Whether results may be summed over relations before they are complete.
    drops : bool
        Whether attention weights are dropped.
    """

    run: Run
    config: tuple[Hashable, ...]
    widths: tuple[int, int | None]
    loops: str = ""
    elementwise: Callable[[Tensor], Tensor] | None = None
    sums: bool = True
    drops: bool = False


class Member(NamedTuple):
    """One relation's call: its number in the graph, layer, and types of both ends."""

    relation: Hashable
    conv: Any
    source: str
    target: str


class Batch(NamedTuple):
    """Relations that run together, those into one type side by side.

    Attributes
    ----------
    kind : Kind
    members : list of Member
    places : list of int
        Where each stands among all of the wrapper's relations.
    sources, targets : list of str
        Types, in the order of their tables.
    """

    kind: Kind
    members: list[Member]
    places: list[int]
    sources: list[str]
    targets: list[str]


def batches(members: Sequence[Member], kinds: Iterable[Kind]) -> list[Batch]:
    """Group relations by the kind of their layers."""
    found: dict[Kind, list[int]] = {}
    for place, kind in enumerate(kinds):
        found.setdefault(kind, []).append(place)
    result = []
    for kind, places in found.items():
        targets = list(dict.fromkeys(members[p].target for p in places))
        order = {target: i for i, target in enumerate(targets)}
        places.sort(key=lambda p: order[members[p].target])
        chosen = [members[p] for p in places]
        sources = list(dict.fromkeys(member.source for member in chosen))
        result.append(Batch(kind, chosen, places, sources, targets))
    return result


def kinds_reason(kinds: Sequence[Kind | str]) -> str | None:
    """Reason code why layers of these kinds do not run in batches, or None."""
    return next((kind for kind in kinds if isinstance(kind, str)), None)


def features_reason(
    found: Sequence[Batch], x_src: Mapping[str, Any], x_dst: Mapping[str, Any], like: Tensor
) -> str | None:
    """Reason code why the features have no fused path beside a parameter of the layers, or None."""
    if torch.is_autocast_enabled(like.device.type):
        return "autocast"
    for batch in found:
        ends = ((batch.sources, x_src), (batch.targets, x_dst))
        for width, (names, tables) in zip(batch.kind.widths, ends, strict=True):
            for name in names:
                reason = None if width is None else _table_reason(tables[name], width, like)
                if reason is not None:
                    return reason
    try:
        launch.aggregation_engine(like.device, like.dtype)
    except Unsupported as error:
        return error.reason
    return None


def dropout_reason(found: Sequence[Batch], symbol: str) -> str | None:
    """Reason code where masks drawn for all relations at once would be compared with stock's."""
    if any(batch.kind.drops for batch in found) and active_mode(symbol) == "verify":
        return "relation-dropout"
    return None


def _table_reason(x: Any, width: int, like: Tensor) -> str | None:
    if type(x) not in PLAIN_TENSORS:
        return "subclass" if isinstance(x, Tensor) else "input-form"
    if x.dim() != 2 or x.layout is not torch.strided or x.shape[1] != width:
        return "input-form"
    if x.device != like.device:
        return "device-mixed"
    if x.dtype != like.dtype:
        return "dtype-mixed"
    return None if x.numel() else "empty"


def parameters_reason(tensors: Iterable[Tensor | None]) -> str | None:
    """Reason code why parameters cannot be put into one buffer, or None."""
    given = [t for t in tensors if t is not None]
    if any(type(t) not in PLAIN_TENSORS for t in given):
        return "parametrized"
    if len({t.dtype for t in given}) > 1:
        return "dtype-mixed"
    return "device-mixed" if len({t.device for t in given}) > 1 else None


def run_batches(
    found: Sequence[Batch],
    union_of: Callable[[Batch], Union],
    x_src: Mapping[str, Tensor],
    x_dst: Mapping[str, Tensor],
    sums: str | None,
    aggregate: Callable[[list[Tensor], str], Tensor],
) -> dict[str, Tensor]:
    """Run all batches and combine their results for each type.

    Parameters
    ----------
    found : sequence of Batch
    union_of : callable
        The union of a batch's relations.
    x_src, x_dst : mapping of str to Tensor
        Features [num_nodes, F] of each type.
    sums : {"sum", "mean"} or None
        How results of several relations are combined, if it is that.
    aggregate : callable
        Otherwise: ``(results in the order of the relations, type) -> Tensor``.

    Returns
    -------
    dict of str to Tensor
        Types in the order in which relations first come to them.

    Raises
    ------
    Unsupported
        A batch has no edges, or no kernel takes its operands.
    """
    fused = sums is not None and all(batch.kind.sums for batch in found)
    counts: dict[str, int] = {}
    for batch in found:
        for member in batch.members:
            counts[member.target] = counts.get(member.target, 0) + 1
    unions = [union_of(batch) for batch in found]
    if any(union.relations.graph.num_edges == 0 for union in unions):
        raise Unsupported("empty")  # before dropout draws
    parts: dict[str, list[tuple[int, Tensor]]] = {}
    for i, batch in enumerate(found):
        divisors = tuple(counts[t] for t in batch.targets) if fused and sums == "mean" else None
        union, kind = unions[i], batch.kind
        rows = union.rows(not fused, divisors)
        tables = _tables(batch, x_src, x_dst)
        out = kind.run([m.conv for m in batch.members], union, rows, *tables)
        out = out if kind.elementwise is None else kind.elementwise(out)
        begin = 0
        for target, part, count in zip(batch.targets, rows.split(out), rows.counts, strict=True):
            pieces = [part] if fused else part.unbind(0)
            places = batch.places[begin : begin + count]
            parts.setdefault(target, []).extend(zip(places, pieces, strict=False))
            begin += count
    results = {}
    first = operator.itemgetter(0)
    for target, numbered in sorted(parts.items(), key=lambda item: min(map(first, item[1]))):
        pieces = [part for _, part in sorted(numbered, key=first)]
        results[target] = _total(pieces) if fused else aggregate(pieces, target)
    return results


def _tables(
    batch: Batch, x_src: Mapping[str, Tensor], x_dst: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Features of the sources and of the destinations, each as one table."""
    src = [x_src[name] for name in batch.sources]
    if batch.kind.widths[1] is None:
        table = _joined(src)
        return table, table
    dst = [x_dst[name] for name in batch.targets]
    if batch.kind.loops == "own":
        src = src + dst
    if len(src) == len(dst) and all(a is b for a, b in zip(src, dst, strict=True)):
        table = _joined(src)
        return table, table
    return _joined(src), _joined(dst)


def _joined(tables: list[Tensor]) -> Tensor:
    return tables[0] if len(tables) == 1 else torch.cat(tables)


def _total(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
