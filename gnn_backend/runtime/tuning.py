"""The first call of attention on a graph, measured at every task length and in both mappings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.runtime import autotune
from gnn_backend.runtime.launch import Cotangents, Saved
from gnn_backend.runtime.plan import Plan, plan_key
from gnn_backend.runtime.selection import CHUNKS, MAPPINGS

if TYPE_CHECKING:
    from gnn_backend.ops.functors import Functor
    from gnn_backend.runtime.device import DeviceEngine


def tune(
    engine: DeviceEngine,
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
) -> None:
    """Put the plan with the fastest settings in the graph's cache, unless there is one.

    A step forward and backward is measured at each of ``selection.CHUNKS``, then at the fastest in
    the other of ``selection.MAPPINGS``, with the operands of the call. While a CUDA graph is
    captured nothing is measured.
    """
    first = operands[functor.value]
    heads, dim = first.shape[1:]
    form = first.dtype, heads, dim, engine.multiprocessors
    key = plan_key(functor, *form)
    if key in graph.plans or not graph.num_edges or _capturing(engine.device):
        return

    def plan(chunk: int, mapping: int = 0) -> Plan:
        return Plan(functor, graph, *form, chunk=chunk, mapping=MAPPINGS[mapping])

    def measure(candidate: Plan) -> float:
        graph.plans[key] = candidate
        return autotune.milliseconds(
            lambda: _step(engine, functor, graph, operands, scalars), engine.device
        )

    device = "emulator" if engine.emulated else torch.cuda.get_device_name(engine.device)
    name = f"{functor.name}-{str(first.dtype)[6:]}-{heads}x{dim}-{autotune.graph_class(graph)}"
    fitted = Plan(functor, graph, *form).chunk
    chunk = autotune.best(device, name, CHUNKS, lambda c: measure(plan(c)), fitted)
    both = len({plan(chunk, m).shape for m in range(len(MAPPINGS))}) > 1
    mapping = (
        autotune.best(device, f"{name}-mapping", (0, 1), lambda m: measure(plan(chunk, m)), 0)
        if both
        else 0
    )
    graph.plans[key] = plan(chunk, mapping)


def _step(
    engine: DeviceEngine,
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
) -> None:
    """Forward, and backward to every operand; the output stands in for its gradient."""
    out, lse, _ = engine.softmax_forward(functor, graph, operands, scalars)
    needs = frozenset(functor.operands)
    engine.softmax_backward(
        functor, graph, operands, scalars, Saved(out, lse), Cotangents(out), needs
    )


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
