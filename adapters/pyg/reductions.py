"""PyG's aggregation modules as reductions of one pass over the neighbours.

A module is known by where its ``forward`` was defined, so that a subclass that changes nothing in
it is fused as well, and one that does is not.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnn_backend.adapters.stamps import is_untracked, stamp
from gnn_backend.graph import Graph
from gnn_backend.layers.degree_scaling import degree_scaled, scale_factors
from gnn_backend.layers.normalization import degrees
from gnn_backend.layers.projection import watched
from gnn_backend.ops.aggregation import POWER_RANGE, aggregate
from gnn_backend.patching import stock

_AGGR = "torch_geometric.nn.aggr"
_BASIC = {
    "SumAggregation": "sum",
    "MeanAggregation": "mean",
    "MaxAggregation": "max",
    "MinAggregation": "min",
    "MulAggregation": "mul",
    "VarAggregation": "var",
    "StdAggregation": "std",
    "SoftmaxAggregation": "softmax",
    "PowerMeanAggregation": "powermean",
}
_COMPOSED = {
    (f"{_AGGR}.multi", "MultiAggregation.forward"): "several",
    (f"{_AGGR}.scaler", "DegreeScalerAggregation.forward"): "scaled",
}
#: What PyG's own fusion of several aggregations keys by class name.
_SHARED = frozenset(("sum", "mean", "max", "min", "mul", "var", "std"))


class _Leaf(NamedTuple):
    """One reduction of one pass."""

    name: str
    temperature: Any = None
    power: Any = None


def kind_of(module: Any) -> str | None:
    """The reduction that a module computes, ``several``, ``scaled``, or None."""
    cls: Any = type(module)
    if "forward" in vars(module) or "reduce" in vars(module):
        return None
    if not hasattr(cls, "reduce"):
        return None
    return _kind(cls, cls.forward, cls.reduce, cls.__call__)


@functools.lru_cache(maxsize=256)
def _kind(cls: type, forward: Any, reduce: Any, call: Any) -> str | None:
    """The verdict on a class while it has these methods."""
    for function, name in ((reduce, "reduce"), (call, "__call__")):
        if _origin(function) != (f"{_AGGR}.base", f"Aggregation.{name}"):
            return None
    module, qualified = _origin(forward)
    if module == f"{_AGGR}.basic":
        return _BASIC.get(qualified.removesuffix(".forward"))
    return _COMPOSED.get((module, qualified))


def _origin(function: Any) -> tuple[str, str]:
    function = stock(function)
    return function.__module__, function.__qualname__


def is_linear(module: Any) -> bool:
    """Whether the aggregation is a sum or a mean, which a linear map may change places with."""
    return kind_of(module) in ("sum", "mean")


def aggregation_reason(module: Any, *, shifts: bool = False) -> str | None:
    """Reason code why an aggregation module has no fused path, or None.

    Parameters
    ----------
    module : torch_geometric.nn.Aggregation or None
    shifts : bool
        Only what commutes with adding a constant to all messages of a row is wanted.
    """
    kind = None if module is None else kind_of(module)
    if kind is None:
        return "aggregation"
    if watched(module):
        return "hooks"
    if kind == "several":
        return _several_reason(module, shifts)
    if kind == "scaled":
        return aggregation_reason(module.aggr, shifts=shifts)
    if shifts and kind in ("mul", "softmax", "powermean"):
        return "aggregation"
    variance = module.var_aggr if kind == "std" else module
    if kind == "std" and (kind_of(variance) != "var" or watched(variance)):
        return "aggregation"
    if getattr(variance, "semi_grad", False):
        return "aggregation"
    if kind == "powermean" and (module.min_value, module.max_value) != POWER_RANGE:
        return "aggregation"
    return None


def _several_reason(module: Any, shifts: bool) -> str | None:
    kinds = [kind_of(part) for part in module.aggrs]
    shared = [kind for kind in kinds if kind in _SHARED]
    if len(set(shared)) < len(shared):
        return "aggregation"  # PyG's own fusion confuses two of one kind
    reasons = (aggregation_reason(part, shifts=shifts) for part in module.aggrs)
    return next((reason for reason in reasons if reason is not None), None)


def reduce_by(
    module: Any, graph: Graph, x: Tensor, edge: Tensor | None = None, message: str = "copy"
) -> Tensor:
    """Aggregate messages as an aggregation module does that :func:`aggregation_reason` accepts.

    Parameters
    ----------
    module : torch_geometric.nn.Aggregation
    graph : Graph
    x : Tensor [num_src, *]
    edge : Tensor [E, ...], optional
    message : {"copy", "mul", "add", "add_relu"}
        As for :func:`gnn_backend.ops.aggregate`.

    Returns
    -------
    Tensor [num_dst, *]

    Raises
    ------
    InvalidArgument
        Shapes or dtypes do not fit.
    """
    kind = kind_of(module)
    if kind in _SHARED:
        out: Tensor = aggregate(graph, x, kind, edge=edge, message=message)
        return out

    def one_pass(names: tuple[str, ...], temperature: Any, power: Any) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = aggregate(
            graph, x, names, edge=edge, message=message, temperature=temperature, power=power
        )
        return found

    return reduce_with(module, one_pass, lambda: graph.by_dst.indptr.diff())


def reduce_with(
    module: Any,
    one_pass: Callable[[tuple[str, ...], Any, Any], tuple[Tensor, ...]],
    counted: Callable[[], Tensor],
) -> Tensor:
    """Build a module's result from reductions, each of as few passes as possible.

    Parameters
    ----------
    module : torch_geometric.nn.Aggregation
    one_pass : callable
        ``(names, temperature, power) -> results``, each [num_dst, *].
    counted : callable
        In-degrees [num_dst].
    """
    leaves = list(_leaves(module))
    rounds: list[dict[str, _Leaf]] = []
    places = []
    for leaf in leaves:
        number = next((k for k, r in enumerate(rounds) if _fits(r, leaf)), len(rounds))
        if number == len(rounds):
            rounds.append({})
        rounds[number][leaf.name] = leaf
        places.append((number, leaf.name))
    found = []
    for chosen in rounds:
        names = tuple(chosen)
        heat = chosen["softmax"].temperature if "softmax" in chosen else None
        power = chosen["powermean"].power if "powermean" in chosen else None
        found.append(dict(zip(names, one_pass(names, heat, power), strict=True)))
    results = iter([found[number][name] for number, name in places])
    return _combined(module, results, counted)


def _leaves(module: Any) -> Iterator[_Leaf]:
    kind = kind_of(module)
    if kind == "several":
        for part in module.aggrs:
            yield from _leaves(part)
    elif kind == "scaled":
        yield from _leaves(module.aggr)
    else:
        assert kind is not None
        yield _Leaf(kind, getattr(module, "t", None), getattr(module, "p", None))


def _fits(chosen: dict[str, _Leaf], leaf: _Leaf) -> bool:
    """Whether a reduction can be taken in the same pass as others."""
    other = chosen.get(leaf.name)
    if other is None:
        return True
    pairs = ((other.temperature, leaf.temperature), (other.power, leaf.power))
    return all(a is b or (not isinstance(a, Tensor) and a == b) for a, b in pairs)


def _combined(module: Any, results: Iterator[Tensor], counted: Callable[[], Tensor]) -> Tensor:
    kind = kind_of(module)
    if kind == "several":
        parts = [_combined(part, results, counted) for part in module.aggrs]
        combined: Tensor = module.combine(parts)
        return combined
    if kind != "scaled":
        return next(results)
    out = _combined(module.aggr, results, counted)
    return degree_scaled(out, factors_of(module, counted().to(out.dtype)))


class _Factors(NamedTuple):
    """Factors, and the means they were made with, which keeps these from being replaced unseen."""

    means: tuple[Tensor, Tensor]
    stamps: tuple[Any, Any]
    table: Tensor


def factors_of(module: Any, degree: Tensor) -> Tensor:
    """What the scalers of a ``DegreeScalerAggregation`` multiply rows with, [N, S]."""
    return scale_factors(degree, module.scaler, module.avg_deg_lin, module.avg_deg_log)


def kept_factors(module: Any, graph: Graph, dtype: torch.dtype) -> Tensor:
    """The same for a graph's in-degrees, kept with it where the means of degrees do not learn."""
    means = module.avg_deg_lin, module.avg_deg_log
    if any(mean.requires_grad or is_untracked(mean) for mean in means):
        return factors_of(module, degrees(graph, "dst").to(dtype))
    key = ("scale factors", tuple(module.scaler), dtype)
    found: _Factors | None = graph.plans.get(key)
    now = stamp(means[0]), stamp(means[1])
    same = found is not None and all(map(operator.is_, found.means, means))
    if found is None or not same or found.stamps != now:
        # Tensors born in inference mode could not take part in a later training step.
        with torch.inference_mode(False), torch.no_grad():
            table = factors_of(module, degrees(graph, "dst").to(dtype))
        found = graph.plans[key] = _Factors(means, now, table)
    return found.table


def is_channelwise(module: Any) -> bool:
    """Whether the aggregation treats all channels alike, so that they may have any shape."""
    kind = kind_of(module)
    return kind in _SHARED or (
        kind in ("softmax", "powermean") and getattr(module, "channels", 1) == 1
    )
