"""The public switches: what is accelerated, how strictly, and for how long."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from gnn_backend import standins
from gnn_backend.compare import compare
from gnn_backend.config import get_config
from gnn_backend.errors import invalid
from gnn_backend.explanation import explain
from gnn_backend.graph import Graph
from gnn_backend.instances import accelerate
from gnn_backend.ops.attention import gatv2_attention
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
    "warmup",
]

Names = str | Iterable[str] | None


def enable(
    *,
    mode: str = "auto",
    hosts: Names = None,
    include: Names = None,
    exclude: Names = None,
    autotune: bool | None = None,
    provide: Names = None,
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
        Of ``"dgl"``, ``"pyg"`` and ``"torch_scatter"``; all by default. Hosts that are not
        installed are no error.
    include, exclude : str or iterable of str, optional
        Layer names, ``"GATv2Conv"`` for all hosts or ``"pyg.GATv2Conv"`` for one, and names of
        functions, ``"scatter_sum"``.
    autotune : bool, optional
        On a GPU, measure launch settings at the first call on a graph and remember them on disk,
        by device, class of graph and shape, instead of taking those fitted to measurements
        elsewhere. Sets ``config.autotune``; by default it is left as it is.
    provide : str or iterable of str, optional
        Of ``"torch_scatter"``: where that cannot be imported, ``import torch_scatter`` gives the
        functions of :mod:`gnn_backend.adapters.torch_scatter`, until :func:`disable`. One warning
        says so. Call it before the code that tests for the package is imported, PyG for example.

    Raises
    ------
    InvalidArgument
        If a mode, host or layer is unknown, or nothing stands in for a package.
    """
    state = _state(mode, hosts, include, exclude, provide)
    if autotune is not None:
        if not isinstance(autotune, bool):
            raise invalid("autotune", "not a flag", repr(autotune), "True, False or None")
        get_config().autotune = autotune
    registry.switch(state)


def disable() -> None:
    """Put the hosts' own objects back: the opposite of :func:`enable`.

    Nothing of this package runs afterwards, but for models that :func:`accelerate` changed, and
    they too run the stock code inside a :func:`disabled` block.
    """
    registry.switch(None)


def enabled(
    *,
    mode: str = "auto",
    hosts: Names = None,
    include: Names = None,
    exclude: Names = None,
    provide: Names = None,
) -> AbstractContextManager[None]:
    """Accelerate inside a ``with`` block and restore the previous state on leaving it.

    The parameters are those of :func:`enable`. The state is the whole process's, so that workers
    and autograd threads see it; blocks of several threads may overlap.
    """
    return registry.scope(_state(mode, hosts, include, exclude, provide))


def disabled() -> AbstractContextManager[None]:
    """Run the stock code inside a ``with`` block and restore the previous state on leaving it.

    Everything is stock there, models that :func:`accelerate` changed included.
    """
    return registry.scope(None)


def is_enabled() -> bool:
    """Whether acceleration is on."""
    return registry.state is not None


def patches() -> list[PatchInfo]:
    """Return what is or could be patched: host, symbol, target, active, replaced_by, note."""
    return registry.describe()


def warmup(
    *,
    dtypes: torch.dtype | Iterable[torch.dtype] = torch.float32,
    dims: int | Iterable[int] = 64,
    heads: int | Iterable[int] = 1,
    device: str | torch.device | None = None,
) -> None:
    """Compile the kernels ahead of the first call, forward and backward.

    They are kept on disk, in ``config.cache_dir``, so once a machine is enough. A call that finds
    no kernel ready compiles it, which takes seconds.

    Parameters
    ----------
    dtypes, dims, heads : value or iterable of values
        Dtypes, dimensions of one head and head counts; every combination is compiled.
    device : str or torch.device, optional
        By default CUDA if there is a device, else the CPU.

    Raises
    ------
    Unsupported
        If a combination has no kernel; ``reason`` says why.
    InvalidArgument
        If a dimension or head count is no positive integer, a dtype is not floating-point, or the
        device is neither the CPU nor CUDA.
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if place.type not in ("cpu", "cuda"):
        raise invalid("device", "no kernels for it", place, "cpu or cuda")
    edge = torch.zeros(2, 1, dtype=torch.long, device=place)
    graph = Graph.from_edge_index(edge, num_src=1, num_dst=1)
    for dtype, dim, head in itertools.product(_several(dtypes), _several(dims), _several(heads)):
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise invalid("dtypes", "not floating-point", dtype, "torch.float32, for example")
        if any(not isinstance(count, int) or count < 1 for count in (dim, head)):
            raise invalid("dims, heads", "not positive integers", (dim, head), "counts from 1 on")
        x = torch.zeros(1, head, dim, dtype=dtype, device=place, requires_grad=True)
        att = torch.zeros(head, dim, dtype=dtype, device=place, requires_grad=True)
        with torch.enable_grad():
            y = gatv2_attention(graph, x, x.clone(), att)
        torch.autograd.grad(y.sum(), [x, att])


def _several(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)


def _state(mode: str, hosts: Names, include: Names, exclude: Names, provide: Names) -> State:
    if mode not in MODES:
        raise invalid("mode", "unknown mode", repr(mode), f"one of {', '.join(MODES)}")
    chosen = get_config().mode if mode == "auto" else mode
    symbols = registry.select(hosts, include, exclude)
    return State(chosen, symbols, standins.prepare(provide))
