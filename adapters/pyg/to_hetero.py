"""PyG's ``to_hetero``: models whose layers take all their relations in one call.

``to_hetero`` writes a program that calls one convolution a relation and adds their results by
twos. Of models made while acceleration is on, each such layer is one call of
:class:`~gnn_backend.adapters.pyg.relation_layers.RelationLayers`, which holds the convolutions in
the place, and under the names, that they have in PyG.
"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

EdgeType = tuple[str, str, str]


class _Site(NamedTuple):
    """One call of a layer in the program.

    Attributes
    ----------
    calls : list of torch.fx.Node
        Of each relation's convolution.
    sums : list of torch.fx.Node
        That combine what these return, those that read others behind them.
    results : list of torch.fx.Node
        Those of the above that have the result of a type.
    """

    calls: list[Any]
    sums: list[Any]
    results: list[Any]


def grouping(transform: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap ``ToHeteroTransformer.transform``, so that layers take all their relations at once."""

    @functools.wraps(transform)
    def grouped(self: Any) -> Any:
        model = transform(self)
        for target in _layers(self):
            _group(model, target, self.metadata[1], self.aggr, self.aggrs[self.aggr])
        model.graph.lint()
        model.recompile()
        return model

    return grouped


def targets(edge_types: Sequence[EdgeType]) -> list[str]:
    """Types that relations end in, in the order in which they first do."""
    return list(dict.fromkeys(edge_type[-1] for edge_type in edge_types))


def by_twos(combine: Callable[[Any, Any], Any], parts: Sequence[Any]) -> Any:
    """Combine in PyG's order: the first two, whose result goes behind the others."""
    queue = deque(parts)
    while len(queue) > 1:
        queue.append(combine(queue.popleft(), queue.popleft()))
    return queue[0]


def _layers(transformer: Any) -> list[str]:
    """Names of the layers that PyG made one a relation."""
    from torch_geometric.nn import MessagePassing

    return [name for name, module in transformer.module.named_modules()
            if name and isinstance(module, MessagePassing)]  # fmt: skip


def _group(
    model: Any, target: str, edge_types: Sequence[EdgeType], aggr: str, combine: Callable[..., Any]
) -> None:
    """Make one call of each call of a layer, unless the program is not what PyG writes."""
    from torch_geometric.nn.to_hetero_transformer import key2str

    from gnn_backend.adapters.pyg.relation_layers import RelationLayers

    names = [key2str(edge_type) for edge_type in edge_types]
    sites = _sites(model.graph, [f"{target}.{name}" for name in names], edge_types, aggr, combine)
    if not sites or len(set(names)) < len(names):
        return
    parent, _, own = target.rpartition(".")
    holder = model.get_submodule(parent)
    layers = holder._modules[own]
    holder._modules[own] = RelationLayers(layers, names, list(edge_types), aggr)
    for site in sites:
        _rewrite(model.graph, target, site)


def _sites(
    graph: Any, calls: list[str], edge_types: Sequence[EdgeType], aggr: str, combine: Any
) -> list[_Site]:
    """The calls of a layer, with their results by type; none where one is not as PyG writes it."""
    by_call = [[n for n in graph.nodes if (n.op, n.target) == ("call_module", c)] for c in calls]
    found = []
    for nodes in zip(*by_call, strict=False):
        site = _Site(list(nodes), [], [])
        for kind in targets(edge_types):
            ends = [node for node, edge_type in zip(nodes, edge_types, strict=True)
                    if edge_type[-1] == kind]  # fmt: skip
            result = _result(ends, aggr, combine, site.sums)
            if result is None:
                return []
            site.results.append(result)
        found.append(site)
    return found if len({len(nodes) for nodes in by_call}) == 1 else []


def _result(ends: list[Any], aggr: str, combine: Any, sums: list[Any]) -> Any:
    """The node that has the combined result of these, or None where it is not as PyG writes it.

    The nodes that combine are appended to ``sums``.
    """

    def only_user(function: Any, *args: Any) -> Any:
        users = {user for node in args if isinstance(node, Node) for user in node.users}
        if None in args or len(users) != 1:
            return None
        (user,) = users
        if (user.target, user.args) != (function, args):
            return None
        sums.append(user)
        return user

    result = by_twos(lambda a, b: only_user(combine, a, b), ends)
    if aggr != "mean" or len(ends) == 1 or result is None:
        return result
    return only_user(torch.div, result, len(ends))


def _rewrite(graph: Any, target: str, site: _Site) -> None:
    with graph.inserting_before(site.calls[0]):
        call = graph.call_module(target, (tuple((n.args, n.kwargs) for n in site.calls),))
        parts = [graph.call_function(operator.getitem, (call, i))
                 for i in range(len(site.results))]  # fmt: skip
    for result, part in zip(site.results, parts, strict=True):
        result.replace_all_uses_with(part)
    for node in reversed([*site.calls, *site.sums]):
        graph.erase_node(node)
