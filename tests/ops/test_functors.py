"""The functor registry, and its plain torch twins against the formula written as loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnn_backend import kernels
from gnn_backend.graph import Graph
from gnn_backend.ops.functors import FUNCTORS, softmax_aggregate
from gnn_backend.runtime import cpu_module
from tests.ops.support import NAMES, as_dtype, edges_with_hubs, gradients, problem, twin


def loops(edges: Tensor, num_dst: int, operands: dict[str, Tensor], slope: float) -> Tensor:
    """GATv2 attention, one destination, head and edge at a time."""
    x_src, x_dst, att = (operands[n] for n in NAMES)
    rows = []
    for i in range(num_dst):
        sources = edges[0, edges[1] == i].tolist()
        heads = []
        for h in range(att.shape[0]):
            logits = []
            for j in sources:
                z = x_src[j, h] + x_dst[i, h]
                logits.append((att[h] * torch.where(z > 0, z, slope * z)).sum())
            total = torch.zeros_like(att[h])
            if sources:
                top = torch.stack(logits).max().detach()
                exps = [(value - top).exp() for value in logits]
                for j, weight in zip(sources, exps, strict=True):
                    total = total + weight / sum(exps) * x_src[j, h]
            heads.append(total)
        rows.append(torch.stack(heads))
    return torch.stack(rows)


@pytest.mark.parametrize("slope", [0.2, 0.0, 1.5, -0.3])
def test_gatv2_twin_is_the_formula(slope: float) -> None:
    p = as_dtype(problem(2, 3, torch.float64, slope=slope), torch.float64)
    edges, _, num_dst = edges_with_hubs()
    out, expected = twin(p), loops(edges, num_dst, p.operands, slope)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    got = gradients(out, p)
    for name, grad in gradients(expected, p).items():
        torch.testing.assert_close(got[name], grad, rtol=1e-10, atol=1e-11)


def test_twin_has_the_slope_as_derivative_at_zero() -> None:
    graph = Graph.from_edge_index(torch.tensor([[0, 1], [0, 0]]), 2, 1)
    x_src = torch.tensor([0.0, 1.0]).view(2, 1, 1).requires_grad_()
    operands = {"x_src": x_src, "x_dst": torch.zeros(1, 1, 1), "att": torch.ones(1, 1)}
    out = FUNCTORS["gatv2"].twin(graph, operands, {"negative_slope": 0.25})
    (grad,) = torch.autograd.grad(out.sum(), x_src)
    low, high = torch.softmax(torch.tensor([0.0, 1.0]), 0).tolist()
    assert grad.flatten().tolist() == pytest.approx([low - 0.25 * low * high, high + low * high])


def test_aggregate_of_masked_edges() -> None:
    graph = Graph.from_csr(torch.tensor([0, 2, 3, 3]), torch.tensor([0, 1, 0]), 2)
    logits = torch.tensor([[-torch.inf], [0.0], [-torch.inf]])
    out = softmax_aggregate(graph, logits, torch.tensor([[[5.0]], [[7.0]], [[5.0]]]))
    assert out[0].item() == 7.0 and out[1].isnan().all() and out[2].item() == 0.0


@pytest.mark.parametrize("name", FUNCTORS)
def test_a_functor_has_its_sources_on_every_target(name: str) -> None:
    functor = FUNCTORS[name]
    assert functor.name == name
    assert functor.operands == (*functor.src, *functor.dst, *functor.params)
    if functor.cuda_type:
        assert f"struct {functor.cuda_type} " in kernels.source(functor.cuda_header)
        assert cpu_module.functor_path(name).is_file()
