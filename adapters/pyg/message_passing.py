"""What may be changed on a PyG ``MessagePassing`` layer, and how to notice it.

A fused layer replaces ``propagate``, ``message``, ``aggregate``, ``update`` and their hooks, so
it must stand aside wherever a user changed one of them: in a subclass, on the class, or on the
instance. Functions are told apart by where they were defined.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gnn_backend.adapters.transformations import transformed_reason

_BASE = "torch_geometric.nn.conv.message_passing"
_STEPS = ("message", "aggregate", "update", "edge_update", "message_and_aggregate")
_GENERATED = ("propagate", "edge_updater")  # PyG writes these anew for each class
_ON_INSTANCE = frozenset((*_STEPS, "edge_updater"))
_class_methods = operator.attrgetter(*_STEPS, *_GENERATED)


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, in every call of a layer
class Origins:
    """Where a stock class defines its methods: (name, module, qualified name) of each.

    ``generated`` are those that PyG writes anew for the class.
    """

    methods: tuple[tuple[str, str, str], ...]
    generated: tuple[str, ...]


def origins(
    module: str, cls: str, *own: str, inherited: Mapping[str, tuple[str, str]] | None = None
) -> Origins:
    """Where a stock class finds its methods.

    Those named ``own`` are its own, those of ``inherited`` those of another class, given as module
    and qualified name, and the others the base's.
    """
    updates = "edge_update" in own  # else the updater is not written anew either
    steps = _STEPS if updates else (*_STEPS, "edge_updater")
    others = inherited or {}
    methods = (
        (n, module, f"{cls}.{n}")
        if n in own
        else (n, *others.get(n, (_BASE, f"MessagePassing.{n}")))
        for n in steps
    )
    return Origins(tuple(methods), _GENERATED if updates else ("propagate",))


def sums_reason(aggregation: Any) -> str | None:
    """Reason code if a layer's aggregation is anything but a sum."""
    if aggregation is None or not _sums(type(aggregation)):
        return "aggr-changed"
    if aggregation._forward_pre_hooks or aggregation._forward_hooks:
        return "hooks"
    return None


def changed_reason(
    conv: Any,
    methods: Origins,
    *,
    node_dim: int = 0,
    aggregation: Callable[[Any], str | None] = sums_reason,
) -> str | None:
    """Reason code if the layer passes messages otherwise than its stock class, or None.

    Parameters
    ----------
    conv : MessagePassing
    methods : Origins
        From :func:`origins`.
    node_dim : int
        Of the stock class.
    aggregation : callable
        Judges the aggregation module.
    """
    if conv.explain:
        return "explain-on"
    if conv.decomposed_layers > 1:
        return "decomposed"
    if _hooked(conv):
        return "hooks"
    if _overridden(conv, methods):
        return "overridden-message"
    if conv.node_dim != node_dim:
        return "node-dim"
    return aggregation(conv.aggr_module) or transformed_reason()


def _hooked(conv: Any) -> bool:
    return bool(
        conv._propagate_forward_pre_hooks
        or conv._propagate_forward_hooks
        or conv._message_forward_pre_hooks
        or conv._message_forward_hooks
        or conv._aggregate_forward_pre_hooks
        or conv._aggregate_forward_hooks
        or conv._message_and_aggregate_forward_pre_hooks
        or conv._message_and_aggregate_forward_hooks
        or conv._edge_update_forward_pre_hooks
        or conv._edge_update_forward_hooks
    )


def _overridden(conv: Any, methods: Origins) -> bool:
    own = conv.__dict__
    if not _ON_INSTANCE.isdisjoint(own):
        return True
    # Leaving decomposition or explanation mode binds the generated method to the instance.
    if (
        "propagate" in own
        and getattr(own["propagate"], "__func__", None) is not type(conv).propagate
    ):
        return True
    return _class_overrides(type(conv), methods)


@torch.compiler.assume_constant_result
def _class_overrides(cls: type, methods: Origins) -> bool:
    return _judged(cls, _class_methods(cls), methods)


@functools.lru_cache(maxsize=256)
def _judged(cls: type, found: tuple[Any, ...], methods: Origins) -> bool:
    """The verdict on a class while it has the methods ``found``."""
    functions = dict(zip((*_STEPS, *_GENERATED), found, strict=True))
    for name, module, qualified in methods.methods:
        if (functions[name].__module__, functions[name].__qualname__) != (module, qualified):
            return True
    return not all(_is_generated(cls, name) for name in methods.generated)


def _is_generated(cls: type, name: str) -> bool:
    """Whether a method is the one that PyG generated for the class that holds it."""
    for owner in cls.__mro__:
        if name in vars(owner):
            generated = f"{owner.__module__}_{owner.__name__}_{name}"
            return bool(vars(owner)[name].__module__ == generated)
    return False


def _sums(aggregation: type) -> bool:
    return (aggregation.__module__, aggregation.__name__) == (
        "torch_geometric.nn.aggr.basic",
        "SumAggregation",
    )
