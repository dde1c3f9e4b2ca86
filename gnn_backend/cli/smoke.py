"""One tiny kernel through each engine, checked against the plain-torch twin."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

#: Largest difference, relative to the largest value, of a float32 result.
_TOLERANCE = 2e-5


def smoke_compiles() -> dict[str, dict[str, Any]]:
    """Compile for, and where possible run on, every engine that this machine has.

    Returns
    -------
    dict
        For each of numba, emulator and nvrtc: ``ok`` (None: not applicable here), ``seconds``
        and ``detail``.
    """
    checks: dict[str, Callable[[], str]] = {"numba": lambda: _run_on_cpu("numba")}
    results = {}
    if shutil.which("g++"):
        checks["emulator"] = lambda: _run_on_cpu("emulator")
    else:
        results["emulator"] = _skipped("no g++ on the PATH; only needed to test kernels on a CPU")
    from gnn_backend.bench import environment

    if environment.nvrtc_version() is None:
        results["nvrtc"] = _skipped("no CuPy with NVRTC; CUDA tensors run the stock layers")
    elif (target := environment.compile_target()) is not None:
        checks["nvrtc"] = lambda: _compile_for_gpu(target)
    else:
        known = ", ".join(f"sm_{arch}" for arch in environment.nvrtc_archs()) or "none"
        results["nvrtc"] = _skipped(
            f"this NVRTC knows no architecture that is of use here ({known})"
        )
    return {name: _attempt(check) for name, check in checks.items()} | results


def _attempt(check: Callable[[], str]) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        ok, detail = True, check()
    except Exception as error:  # whatever breaks is the finding
        ok, detail = False, f"{type(error).__name__}: {error}"
    return {"ok": ok, "seconds": round(time.perf_counter() - start, 3), "detail": detail}


def _skipped(why: str) -> dict[str, Any]:
    return {"ok": None, "seconds": 0.0, "detail": why}


def _run_on_cpu(target: str) -> str:
    import torch

    from gnn_backend.config import override
    from gnn_backend.datasets import uniform
    from gnn_backend.graph import Graph
    from gnn_backend.ops.attention import gatv2_attention
    from gnn_backend.ops.functors import FUNCTORS

    generator = torch.Generator().manual_seed(0)
    graph = Graph.from_edge_index(uniform(6, 5, 20), 6, 5)
    x_src, x_dst, att = (
        torch.randn(size, generator=generator) for size in ((6, 2, 4), (5, 2, 4), (2, 4))
    )
    with override(cpu_target=target):
        got = gatv2_attention(graph, x_src, x_dst, att, negative_slope=0.2)
    operands = {"x_src": x_src, "x_dst": x_dst, "att": att}
    want = FUNCTORS["gatv2"].twin(graph, operands, {"negative_slope": 0.2})
    error = float((got - want).abs().max() / want.abs().max())
    if not error <= _TOLERANCE:
        raise AssertionError(f"gatv2 is off by {error:.2g} relative, {_TOLERANCE} is allowed")
    return f"gatv2 ran, largest relative difference {error:.1g}"


def _compile_for_gpu(target: str) -> str:
    from gnn_backend.ops.functors import FUNCTORS
    from gnn_backend.runtime import selection
    from gnn_backend.runtime.compile import compile_unit
    from gnn_backend.runtime.instances import softmax_unit

    functor = FUNCTORS["gatv2"]
    shape = selection.shape_for("f32", 2, 64)
    unit = softmax_unit(functor.cuda_type, functor.cuda_header, "f32", shape)
    code, _ = compile_unit(unit, target)
    return f"gatv2 float32 for {target}: {len(code):,} bytes of machine code"
