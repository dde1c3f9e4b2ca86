"""Other packages with a fused GATv2 operator, measured where they are installed."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_backend.bench import timing
from gnn_backend.graph import Graph

if TYPE_CHECKING:
    from gnn_backend.bench.attention import Settings

# Warps a light and a heavy node get, forward and backward alike; the best setting counts.
_TURBO_WARPS = ((1, 8), (1, 32), (2, 8), (4, 16))


def turbo_gnn(
    graph: Graph, operands: Mapping[str, Tensor], settings: Settings
) -> dict[str, Any] | str:
    """Turbo-GNN's GATv2 aggregation: eager times at the best of four launch settings.

    Returns a text instead where the package is missing or refuses the input.
    """
    if not _installed():
        return "not installed"
    x_src, x_dst, att = (operands[name] for name in ("x_src", "x_dst", "att"))
    from turbo_gnn import AdjacencyForwardBackwardWithNodeBuckets, gatv2_aggr

    rows, columns = graph.by_dst, graph.by_src
    parts = [t.long() for t in (rows.indptr, rows.indices, columns.indptr, columns.indices)]
    theirs = AdjacencyForwardBackwardWithNodeBuckets.from_csr(*parts).to(settings.device)
    cotangent = torch.randn_like(x_dst)

    def call(light: int, heavy: int, backward: bool) -> None:
        warps = {f"{way}_light_warps": light for way in ("forward", "backward")}
        warps |= {f"{way}_heavy_warps": heavy for way in ("forward", "backward")}
        with torch.set_grad_enabled(backward):
            out = gatv2_aggr(theirs, x_dst, x_src, att, **warps)
        if backward:
            torch.autograd.grad(out, (x_src, x_dst, att), cotangent.view(out.shape))

    def best(backward: bool) -> float:
        counts = min(settings.inner, 3), min(settings.repeats, 3)
        return min(
            timing.eager_ms(functools.partial(call, *warps, backward), settings.device, *counts)
            for warps in _TURBO_WARPS
        )

    try:
        return {"forward_ms": best(False), "forward_backward_ms": best(True)}
    except (RuntimeError, ValueError, TypeError) as error:
        return f"failed: {str(error).splitlines()[0]}"


def _installed() -> bool:
    return importlib.util.find_spec("turbo_gnn") is not None
