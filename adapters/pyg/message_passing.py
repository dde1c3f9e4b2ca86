"""What may be changed on a PyG ``MessagePassing`` layer, and how to notice it.

A fused layer replaces ``propagate``, ``message``, ``aggregate``, ``update`` and their hooks, so
it must stand aside wherever a user changed one of them: in a subclass, on the class, or on the
instance. Functions are told apart by where they were defined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_BASE = "torch_geometric.nn.conv.message_passing"
_BASE_METHODS = {
    name: (_BASE, f"MessagePassing.{name}")
    for name in ("message", "aggregate", "update", "edge_update", "message_and_aggregate")
}
_GENERATED = ("propagate", "edge_updater")  # PyG writes these anew for each class
_HOOKS = tuple(
    f"_{part}_forward_{kind}"
    for part in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    for kind in ("pre_hooks", "hooks")
)


def changed_reason(conv: Any, methods: Mapping[str, tuple[str, str]]) -> str | None:
    """Reason code if the layer passes messages otherwise than its stock class, or None.

    Parameters
    ----------
    conv : MessagePassing
    methods : mapping of method name -> (module, qualified name)
        Where the stock class defines the methods that it overrides itself.
    """
    if conv.explain:
        return "explain-on"
    if conv.decomposed_layers > 1:
        return "decomposed"
    if any(getattr(conv, name) for name in _HOOKS) or conv.aggr_module._forward_hooks:
        return "hooks"
    if _overridden(conv, {**_BASE_METHODS, **methods}):
        return "overridden-message"
    if conv.node_dim != 0:
        return "node-dim"
    if not _sums(conv):
        return "aggr-changed"
    return None if torch.compiler.is_compiling() else _transformed()


def _overridden(conv: Any, methods: Mapping[str, tuple[str, str]]) -> bool:
    for name, origin in methods.items():
        function = getattr(conv, name)
        function = getattr(function, "__func__", function)
        if (function.__module__, function.__qualname__) != origin:
            return True
    return any(not _is_generated(conv, name) for name in _GENERATED)


def _is_generated(conv: Any, name: str) -> bool:
    """Whether a method is the one that PyG generated for the class that holds it."""
    function = getattr(getattr(conv, name), "__func__", None)
    for owner in type(conv).__mro__:
        if name in vars(owner):
            generated = f"{owner.__module__}_{owner.__name__}_{name}"
            return function is vars(owner)[name] and function.__module__ == generated
    return False


def _sums(conv: Any) -> bool:
    aggregation = type(conv.aggr_module)
    return (aggregation.__module__, aggregation.__name__) == (
        "torch_geometric.nn.aggr.basic",
        "SumAggregation",
    )


def _transformed() -> str | None:
    """Reason code inside transformations that follow plain torch operators only."""
    if torch._C._get_tracing_state() is not None:
        return "scripted"
    forward_mode = torch.autograd.forward_ad._current_level >= 0
    if forward_mode or torch._C._functorch.peek_interpreter_stack() is not None:
        return "transforms"
    return None
