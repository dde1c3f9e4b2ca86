"""Graphs, operands and comparisons shared by the tests of the CPU engine."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gnn_backend.graph import CSR, Graph
from gnn_backend.ops.functors import FUNCTORS, Functor
from gnn_backend.runtime import cpu
from gnn_backend.runtime.launch import Cotangents, Saved

GATV2 = FUNCTORS["gatv2"]
SLOPE = {"negative_slope": 0.2}


def skewed_graph(num_src: int = 60, num_dst: int = 45, edges: int = 700, seed: int = 0) -> Graph:
    """Random, bipartite: hubs on both sides, duplicates, and nodes without edges."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(2, edges, generator=generator, dtype=torch.float64)
    src = (draw[0] ** 3 * (num_src - 5)).long()
    dst = 3 + (draw[1] ** 4 * (num_dst - 8)).long()
    return Graph.from_edge_index(torch.stack([src, dst]), num_src, num_dst)


def with_64_bit_offsets(graph: Graph) -> Graph:
    """The graph with offsets as graphs of 2^31 edges have them; its edges in the CSR's order."""
    by_dst, by_src = (CSR(c.indptr.long(), c.indices, None) for c in (graph.by_dst, graph.by_src))
    wide = Graph(graph.num_src, graph.num_dst, by_dst, {})
    wide._by_src = by_src
    return wide


def gatv2_operands(
    graph: Graph, heads: int, width: int, dtype: torch.dtype = torch.float32, seed: int = 1
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return {
        "x_src": draw(graph.num_src, heads, width),
        "x_dst": draw(graph.num_dst, heads, width),
        "att": draw(heads, width) / max(width, 1) ** 0.5,
    }


def cotangent(graph: Graph, operands: Mapping[str, Tensor], value: str = "x_src") -> Tensor:
    generator = torch.Generator().manual_seed(2)
    shape = graph.num_dst, *operands[value].shape[1:]
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(operands[value].dtype)


def run(
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float] = SLOPE,
    grad_out: Tensor | None = None,
    functor: Functor = GATV2,
    needs: frozenset[str] | None = None,
    value: str = "x_src",
) -> dict[str, Tensor]:
    """Output ("out") and gradients of the engine."""
    if grad_out is None:
        grad_out = cotangent(graph, operands, value)
    out, lse, _ = cpu.softmax_forward(functor, graph, operands, scalars)
    needs = frozenset(operands) if needs is None else needs
    return {"out": out} | cpu.softmax_backward(
        functor, graph, operands, scalars, Saved(out, lse), Cotangents(grad_out), needs
    )


def reference(
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float] = SLOPE,
    grad_out: Tensor | None = None,
    functor: Functor = GATV2,
    value: str = "x_src",
) -> dict[str, Tensor]:
    """The same from the plain-torch twin in float64."""
    if grad_out is None:
        grad_out = cotangent(graph, operands, value)
    leaves = {k: v.detach().double().clone().requires_grad_() for k, v in operands.items()}
    out = functor.twin(graph, leaves, scalars)
    out.backward(grad_out.double())
    grads = {k: torch.zeros_like(v) if v.grad is None else v.grad for k, v in leaves.items()}
    return {"out": out.detach()} | grads


def assert_close(
    got: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float
) -> None:
    """Largest difference at most ``tolerance`` of the largest reference, NaN and inf in place."""
    assert set(got) == set(expected)
    for name, reference_ in expected.items():
        value = got[name].double()
        assert value.shape == reference_.shape, name
        assert torch.equal(value.isnan(), reference_.isnan()), f"{name}: other NaN"
        infinite = reference_.isinf()
        assert torch.equal(value.isinf(), infinite), f"{name}: other infinities"
        assert torch.equal(value[infinite], reference_[infinite]), f"{name}: sign of infinities"
        finite = reference_.isfinite()
        if finite.any():
            # The floor is for gradients that cancel to 0, as towards x_dst where the slope is 1.
            scale = max(reference_[finite].abs().max().item(), 0.1)
            error = (value[finite] - reference_[finite]).abs().max().item() / scale
            assert error <= tolerance, f"{name}: {error:.2e}"


class LargestTensor(TorchDispatchMode):
    """Remembers the bytes of the largest tensor that any torch operation returned."""

    size = 0

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor):
                self.size = max(self.size, value.numel() * value.element_size())
        return result
