"""A layer of a model made by PyG's ``to_hetero``: its relations in one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gnn_backend.adapters.known_kinds import known
from gnn_backend.adapters.pyg.hetero_conv import Call, call_of, run
from gnn_backend.adapters.pyg.hetero_kinds import is_square, kind_of
from gnn_backend.adapters.pyg.to_hetero import EdgeType, by_twos, targets
from gnn_backend.adapters.relations import Member
from gnn_backend.dispatch import Dispatcher

SYMBOL = "pyg.to_hetero"
_AGGREGATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": torch.add, "mean": torch.add, "max": torch.max, "min": torch.min, "mul": torch.mul,
}  # fmt: skip
Arguments = Sequence[tuple[tuple[Any, ...], dict[str, Any]]]
_local = threading.local()


class RelationLayers(nn.ModuleDict):
    """Convolutions by relation, called together: what ``to_hetero`` makes of one layer.

    Parameters
    ----------
    layers : ModuleDict
        The convolutions.
    names : sequence of str
        Under which they are in it, one a relation.
    edge_types : list of (str, str, str)
        The relations, in the same order.
    aggr : {"sum", "mean", "max", "min", "mul"}
        How results of relations into one type are combined.
    """

    def __init__(
        self, layers: nn.ModuleDict, names: Sequence[str], edge_types: list[EdgeType], aggr: str
    ) -> None:
        super().__init__({name: layers[name] for name in names})
        self.edge_types, self.aggr = edge_types, aggr

    def forward(self, arguments: Arguments) -> tuple[Tensor, ...]:
        """Call each relation's convolution and combine what goes into one type.

        Parameters
        ----------
        arguments : sequence of (tuple, dict)
            Those of each relation's call.

        Returns
        -------
        tuple of Tensor [num_nodes, ...]
            Of the types that relations end in, in the order in which they first do.
        """
        parts: dict[str, list[Tensor]] = {kind: [] for kind in targets(self.edge_types)}
        for edge_type, conv, (args, kwargs) in zip(
            self.edge_types, self.values(), arguments, strict=True
        ):
            parts[edge_type[-1]].append(conv(*args, **kwargs))
        return tuple(self.combined(found) for found in parts.values())

    def combined(self, parts: Sequence[Tensor]) -> Tensor:
        """Results of several relations as one, in the order of the stock program."""
        total = by_twos(_AGGREGATIONS[self.aggr], parts)
        return total / len(parts) if self.aggr == "mean" and len(parts) > 1 else total


def eligible(layers: RelationLayers, arguments: Arguments) -> str | None:
    """Reason code why this call runs relation by relation, or None.

    Where it does, each relation's layer is still accelerated by itself.
    """
    found = _prepared(layers, arguments)
    if isinstance(found, str):
        return found
    _local.call = (arguments, found)
    return None


def static_reason(layers: RelationLayers) -> str | None:
    """The part of :func:`eligible` that the layers alone decide."""
    return known(layers, list(layers.values()), kind_of).reason


def fast(layers: RelationLayers, arguments: Arguments) -> tuple[Tensor, ...]:
    """:meth:`RelationLayers.forward` for a call that :func:`eligible` accepts.

    Raises
    ------
    InvalidArgument
        An edge does not fit the features.
    Unsupported
        No kernel takes these operands.
    """
    given, call = vars(_local).pop("call", (None, None))
    if given is not arguments:
        call = _prepared(layers, arguments)  # as where aliases of the tensors are followed
    assert isinstance(call, Call)
    found = run(call, layers.aggr, layers.combined)
    return tuple(found[kind] for kind in targets(layers.edge_types))


def _prepared(layers: RelationLayers, arguments: Arguments) -> Call | str:
    if torch.compiler.is_compiling():
        return "compiled"
    x: dict[str, Any] = {}
    edges: dict[Any, Any] = {}
    members = []
    for edge_type, conv, (args, kwargs) in zip(
        layers.edge_types, layers.values(), arguments, strict=True
    ):
        if kwargs or len(args) != 2:
            return "relation-arguments"
        source, target = edge_type[0], edge_type[-1]
        ends, edges[edge_type] = args
        pair = ends if isinstance(ends, (tuple, list)) else (ends, ends)
        if len(pair) != 2 or (source != target and is_square(conv)):
            return "input-form"
        for kind, rows in zip((source, target), pair, strict=True):
            if x.setdefault(kind, rows) is not rows:
                return "input-form"
        members.append(Member(edge_type, conv, source, target))
    return call_of(layers, members, x, edges, SYMBOL)


_dispatcher = Dispatcher(SYMBOL, eligible, fast, static=static_reason)
RelationLayers.forward = _dispatcher(RelationLayers.forward)  # type: ignore[method-assign]
