"""What may be changed on a PyG ``MessagePassing`` layer, and how to notice it.

A fused layer replaces ``propagate``, ``message``, ``aggregate``, ``update`` and their hooks, so
it must stand aside wherever a user changed one of them: in a subclass, on the class, or on the
instance. Functions are told apart by where they were defined.
"""

from __future__ import annotations

from typing import Any

import torch

_BASE = "torch_geometric.nn.conv.message_passing"
Origins = tuple[tuple[str, str, str], ...]
"""Where the stock class defines its methods: (name, module, qualified name)."""

_GENERATED = ("propagate", "edge_updater")  # PyG writes these anew for each class
_HOOKS = tuple(
    f"_{part}_forward_{kind}"
    for part in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    for kind in ("pre_hooks", "hooks")
)


def origins(module: str, cls: str, *own: str) -> Origins:
    """Where a stock class finds its methods: those named ``own`` are its own, others the base's."""
    steps = ("message", "aggregate", "update", "edge_update", "message_and_aggregate")
    return tuple(
        (n, module, f"{cls}.{n}") if n in own else (n, _BASE, f"MessagePassing.{n}") for n in steps
    )


def changed_reason(conv: Any, methods: Origins) -> str | None:
    """Reason code if the layer passes messages otherwise than its stock class, or None.

    Parameters
    ----------
    conv : MessagePassing
    methods : tuple of (name, module, qualified name)
        From :func:`origins`.
    """
    if conv.explain:
        return "explain-on"
    if conv.decomposed_layers > 1:
        return "decomposed"
    if any(getattr(conv, name) for name in _HOOKS) or _hooked(conv.aggr_module):
        return "hooks"
    if _overridden(conv, methods):
        return "overridden-message"
    if conv.node_dim != 0:
        return "node-dim"
    if not _sums(conv):
        return "aggr-changed"
    return _transformed()


def _hooked(aggregation: Any) -> bool:
    return bool(aggregation._forward_pre_hooks or aggregation._forward_hooks)


def _overridden(conv: Any, methods: Origins) -> bool:
    own = conv.__dict__
    if any(name in own for name, _, _ in methods) or "edge_updater" in own:
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
    for name, module, qualified in methods:
        function = getattr(cls, name)
        if (function.__module__, function.__qualname__) != (module, qualified):
            return True
    return not all(_is_generated(cls, name) for name in _GENERATED)


def _is_generated(cls: type, name: str) -> bool:
    """Whether a method is the one that PyG generated for the class that holds it."""
    for owner in cls.__mro__:
        if name in vars(owner):
            generated = f"{owner.__module__}_{owner.__name__}_{name}"
            return bool(vars(owner)[name].__module__ == generated)
    return False


def _sums(conv: Any) -> bool:
    aggregation = type(conv.aggr_module)
    return (aggregation.__module__, aggregation.__name__) == (
        "torch_geometric.nn.aggr.basic",
        "SumAggregation",
    )


def _transformed() -> str | None:
    """Reason code inside transformations that follow plain torch operators only."""
    if torch.compiler.is_compiling():  # an exported program must run without this package
        return "scripted" if getattr(torch.compiler, "is_exporting", bool)() else None
    if torch._C._get_tracing_state() is not None:
        return "scripted"
    forward_mode = torch.autograd.forward_ad._current_level >= 0
    if forward_mode or torch._C._functorch.peek_interpreter_stack() is not None:
        return "transforms"
    return None
