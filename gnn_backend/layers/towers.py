"""All towers of a principal neighbourhood aggregation at once, with the variances of DGL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.layers.degree_scaling import scale_factors, scaled_update
from gnn_backend.layers.normalization import degrees
from gnn_backend.layers.pna import mapped, shifted_reductions
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
    factors = _factors(graph, tuple(scalers), delta, x.dtype)
    return [
        scaled_update(own[:, t], found[:, t], factors, tower.update) for t, tower in enumerate(maps)
    ]


def _reductions(
    graph: Graph,
    x: Tensor,
    maps: Sequence[Tower],
    aggregators: Sequence[str],
    edge: Tensor | None,
) -> Tensor:
    """All reductions of the messages, [N, T, A D]."""
    width = x.shape[2]
    weights = torch.stack([tower.message.weight for tower in maps])  # [T, D, 2 D + F]
    biases = torch.stack([_bias(tower.message) for tower in maps])
    source = mapped(x, weights[..., :width])
    target = mapped(x, weights[..., width : 2 * width]) + biases
    given = None if edge is None else mapped(edge, weights[..., 2 * width :])
    names = tuple(dict.fromkeys("var" if name == "std" else name for name in aggregators))
    values = shifted_reductions(graph, source, target, given, names, ties="first")
    by_name = dict(zip(names, values, strict=True))
    single = (degrees(graph, "dst") <= 1).view(-1, 1, 1)
    parts = [
        _spread(by_name["var"], name, single) if name in ("std", "var") else by_name[name]
        for name in aggregators
    ]
    return torch.cat(parts, dim=-1)


def _spread(var: Tensor, name: str, single: Tensor) -> Tensor:
    """Variance or deviation; of a single message 0 to the bit, where the root is very steep."""
    var = torch.relu(var).masked_fill(single, 0.0)
    return var if name == "var" else torch.sqrt(var + _FLOOR)


def _bias(map_: Projection) -> Tensor:
    return map_.weight.new_zeros(len(map_.weight)) if map_.bias is None else map_.bias


def _factors(graph: Graph, scalers: tuple[str, ...], delta: float, dtype: torch.dtype) -> Tensor:
    """What each scaler multiplies a row with, [N, S]; 0 for rows without edges. Kept."""
    key = ("tower factors", scalers, delta, dtype)
    found = graph.plans.get(key)
    if found is None:
        with torch.inference_mode(False), torch.no_grad():
            degree = degrees(graph, "dst")
            table = scale_factors(degree.double(), scalers, 1.0, delta)
            found = table.masked_fill((degree == 0).unsqueeze(1), 0.0).to(dtype)
        graph.plans[key] = found
    return found  # type: ignore[no-any-return]
