"""Principal neighbourhood aggregation (Corso et al., 2020) over all towers at once.

A tower's message is one linear map of both ends and the edge. Its part of the destination is the
same for a whole row, so it is added behind the reductions, and of the sources' parts all
reductions of all towers are taken in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear as apply_linear

from gnn_backend.graph import Graph
from gnn_backend.layers.scaled_adjacency import degrees
from gnn_backend.ops.aggregation import aggregate
from gnn_backend.ops.projected_attention import Projection

AGGREGATORS = ("mean", "sum", "max", "min", "std", "var")
SCALERS = ("identity", "amplification", "attenuation")
_FLOOR = 1e-30  # added to a variance before its root


class Tower(NamedTuple):
    """The linear maps of a tower.

    Attributes
    ----------
    message : Projection
        Weight [D, 2 D + F]: of the source, the destination and the edge.
    update : Projection
        Weight [O, D + S A D]: of the node, then for each scaler of each aggregator's result.
    """

    message: Projection
    update: Projection


def towers(
    graph: Graph,
    x: Tensor,
    maps: Sequence[Tower],
    aggregators: Sequence[str],
    scalers: Sequence[str],
    delta: float,
    edge: Tensor | None = None,
) -> list[Tensor]:
    """Results of all towers, up to their normalisation.

    Parameters
    ----------
    graph : Graph
        As many sources as destinations.
    x : Tensor [N, T D]
        The towers' features side by side.
    maps : sequence of Tower
        T of them.
    aggregators : sequence of str
        Of ``AGGREGATORS``.
    scalers : sequence of str
        Of ``SCALERS``.
    delta : float
        What the logarithm of a degree plus one is divided by.
    edge : Tensor [E, F], optional
        In the caller's edge order.

    Returns
    -------
    list of Tensor [N, O]
        One for each tower.
    """
    count, width = len(maps), x.shape[1] // len(maps)
    own = x.view(-1, count, width)
    found = _reductions(graph, own, maps, aggregators, edge)
    factors = scale_factors(graph, tuple(scalers), delta, x.dtype)
    return [_updated(own[:, t], found[:, t], factors, tower.update) for t, tower in enumerate(maps)]


def _reductions(
    graph: Graph,
    x: Tensor,
    maps: Sequence[Tower],
    aggregators: Sequence[str],
    edge: Tensor | None,
) -> Tensor:
    """All reductions of the messages, [N, T, A D]; rows without edges hold no meaning."""
    width = x.shape[2]
    weights = torch.stack([tower.message.weight for tower in maps])  # [T, D, 2 D + F]
    biases = torch.stack([_bias(tower.message) for tower in maps])
    source = torch.einsum("ntf,tdf->ntd", x, weights[..., :width])
    target = torch.einsum("ntf,tdf->ntd", x, weights[..., width : 2 * width]) + biases
    given, kind = None, "copy"
    if edge is not None:
        rest = weights[..., 2 * width :].flatten(0, 1)
        given, kind = apply_linear(edge, rest).view(-1, *source.shape[1:]), "add"
    names = tuple(dict.fromkeys("var" if name == "std" else name for name in aggregators))
    values = aggregate(
        graph, source, names, edge=given, message=kind, ties="first", nan="propagate"
    )
    by_name = dict(zip(names, values, strict=True))
    shift = {"sum": target * degrees(graph, "dst").to(x.dtype).view(-1, 1, 1)}
    single = (degrees(graph, "dst") <= 1).view(-1, 1, 1)
    parts = [
        _spread(by_name["var"], name, single)
        if name in ("std", "var")
        else by_name[name] + shift.get(name, target)
        for name in aggregators
    ]
    return torch.cat(parts, dim=-1)


def _spread(var: Tensor, name: str, single: Tensor) -> Tensor:
    """Variance or deviation; of a single message 0 to the bit, where the root is very steep."""
    var = torch.relu(var).masked_fill(single, 0.0)
    return var if name == "var" else torch.sqrt(var + _FLOOR)


def _bias(map_: Projection) -> Tensor:
    return map_.weight.new_zeros(len(map_.weight)) if map_.bias is None else map_.bias


def scale_factors(
    graph: Graph, scalers: tuple[str, ...], delta: float, dtype: torch.dtype
) -> Tensor:
    """What each scaler multiplies a row with, [N, S]; 0 for rows without edges. Kept."""
    key = ("tower factors", scalers, delta, dtype)
    found = graph.plans.get(key)
    if found is None:
        with torch.inference_mode(False), torch.no_grad():
            degree = degrees(graph, "dst").double()
            log = torch.log(degree + 1).div(delta)
            columns = {
                "identity": torch.ones_like(log),
                "amplification": log,
                "attenuation": log.clamp(min=math.log(2.0) / abs(delta)).reciprocal(),
            }
            table = torch.stack([columns[name] for name in scalers], dim=1)
            found = table.masked_fill((degree == 0).unsqueeze(1), 0.0).to(dtype)
        graph.plans[key] = found
    return found  # type: ignore[no-any-return]


def _updated(x: Tensor, reductions: Tensor, factors: Tensor, update: Projection) -> Tensor:
    """The update map of a node's features and of its scaled reductions.

    Scaling rows commutes with the map, so the reductions are not laid side by side scaled.
    """
    weight, (rows, scalers) = update.weight, factors.shape
    out_width, width = weight.shape[0], x.shape[1]
    stacked = weight[:, width:].reshape(out_width, scalers, -1).transpose(0, 1).flatten(0, 1)
    mapped = apply_linear(reductions, stacked).view(rows, scalers, out_width)
    own = apply_linear(x, weight[:, :width], update.bias)
    return own + (mapped * factors.unsqueeze(-1)).sum(1)
