"""The public switches: what is accelerated, how strictly, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

from gnn_backend.compare import compare
from gnn_backend.config import get_config
from gnn_backend.errors import invalid
from gnn_backend.explanation import explain
from gnn_backend.instances import accelerate
from gnn_backend.patching import MODES, PatchInfo, State, registry
from gnn_backend.profile import profile

__all__ = [
    "accelerate",
    "compare",
    "disable",
    "disabled",
    "enable",
    "enabled",
    "explain",
    "is_enabled",
    "patches",
    "profile",
]

Names = str | Iterable[str] | None


def enable(
    *, mode: str = "auto", hosts: Names = None, include: Names = None, exclude: Names = None
) -> None:
    """Accelerate the supported layers of DGL and PyTorch Geometric, without changing code.

    Order does not matter: hosts may be imported, and models built, before or after. The call is a
    switch: called again, it replaces what was chosen before. It holds for the whole process.

    Parameters
    ----------
    mode : {"auto", "strict", "verify"}
        What happens to a call that has no fused path: the stock code runs (``auto``, ``verify``)
        or StrictFallbackError is raised (``strict``). ``verify`` also runs the stock code beside
        each fused call and compares outputs and gradients. With ``auto`` the environment variable
        ``GNN_BACKEND_MODE`` chooses, if it is set.
    hosts : str or iterable of str, optional
        Of ``"dgl"`` and ``"pyg"``; all by default. Hosts that are not installed are no error.
    include, exclude : str or iterable of str, optional
        Layer names, ``"GATv2Conv"`` for all hosts or ``"pyg.GATv2Conv"`` for one.

    Raises
    ------
    InvalidArgument
        If a mode, host or layer is unknown.
    """
    registry.switch(_state(mode, hosts, include, exclude))


def disable() -> None:
    """Put the hosts' own objects back; nothing of this package runs afterwards."""
    registry.switch(None)


def enabled(
    *, mode: str = "auto", hosts: Names = None, include: Names = None, exclude: Names = None
) -> AbstractContextManager[None]:
    """Accelerate inside a ``with`` block and restore the previous state on leaving it.

    The parameters are those of :func:`enable`. The state is the whole process's, so that workers
    and autograd threads see it; blocks of several threads may overlap.
    """
    return registry.scope(_state(mode, hosts, include, exclude))


def disabled() -> AbstractContextManager[None]:
    """Run the stock code inside a ``with`` block and restore the previous state on leaving it."""
    return registry.scope(None)


def is_enabled() -> bool:
    """Whether acceleration is on."""
    return registry.state is not None


def patches() -> list[PatchInfo]:
    """Return what is or could be patched: host, symbol, target, active, replaced_by, note."""
    return registry.describe()


def _state(mode: str, hosts: Names, include: Names, exclude: Names) -> State:
    if mode not in MODES:
        raise invalid("mode", "unknown mode", repr(mode), f"one of {', '.join(MODES)}")
    chosen = get_config().mode if mode == "auto" else mode
    return State(chosen, registry.select(hosts, include, exclude))
