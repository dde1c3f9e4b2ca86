"""Problems for attention over tiles, and the float64 formula to judge them by."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gnn_backend import datasets
from gnn_backend.graph import Graph
from gnn_backend.graph.build import expand_rows
from gnn_backend.ops.functors import softmax_aggregate
from gnn_backend.runtime import block_sparse
from tests.ops.support import edges_with_hubs, scale_of

#: Largest error of the output and of the gradients, relative to the largest reference value: inputs
#: and weights are rounded to 8, 11 and 11 bits.
TOLERANCE = {
    torch.bfloat16: (6e-3, 1.5e-2),
    torch.float16: (1e-3, 2e-3),
    torch.float32: (2e-3, 3e-3),
}
DTYPES = tuple(TOLERANCE)
Edges = tuple[Tensor, int, int]


@dataclasses.dataclass
class Problem:
    """Inputs of one call with a cotangent."""

    graph: Graph
    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    scale: float
    edge_bias: Tensor | None = None


def problem(
    edges: Edges, heads: int, dim: int, dtype: torch.dtype, *, device: str = "cpu"
) -> Problem:
    """Seeded normal operands; logits are of order one."""
    edge_index, num_src, num_dst = edges
    generator = torch.Generator().manual_seed(0)
    tables = [
        torch.randn(n, heads, dim, generator=generator).to(device, dtype)
        for n in (num_dst, num_src, num_src, num_dst)
    ]
    return Problem(
        Graph.from_edge_index(edge_index.to(device), num_src, num_dst), *tables, dim**-0.5
    )


def with_bias(p: Problem, dtype: torch.dtype) -> Problem:
    """The same with a seeded normal bias an edge and head."""
    generator = torch.Generator().manual_seed(5)
    shape = (p.graph.num_edges, p.q.shape[1])
    return dataclasses.replace(p, edge_bias=torch.randn(shape, generator=generator).to(dtype))


def run(p: Problem, needs: str = "qkv") -> dict[str, Tensor]:
    """Output, log-sum-exp and the gradients that are needed."""
    wanted = {*needs} if p.edge_bias is None else {*needs, "edge_bias"}
    out, lse = block_sparse.forward(p.graph, p.q, p.k, p.v, p.scale, p.edge_bias)
    found = block_sparse.backward(
        p.graph, p.q, p.k, p.v, p.scale, out, lse, p.grad, frozenset(wanted), p.edge_bias
    )
    assert {n for n, g in found._asdict().items() if g is not None} == wanted
    return {"out": out, "lse": lse, **{n: g for n, g in found._asdict().items() if g is not None}}


def reference(p: Problem) -> tuple[dict[str, Tensor], Tensor]:
    """Output and gradients, and the base-2 log-sum-exp."""
    q, k, v = (t.double().requires_grad_() for t in (p.q, p.k, p.v))
    graph = p.graph
    source = graph.by_dst.indices.long()
    rows = expand_rows(graph.by_dst.indptr, graph.num_edges).long()
    edges = graph.by_dst.edge_ids
    logits = (q[rows] * k[source]).sum(-1) * p.scale
    operands = {"q": q, "k": k, "v": v}
    if p.edge_bias is not None:
        bias = operands["edge_bias"] = p.edge_bias.double().requires_grad_()
        logits = logits + (bias if edges is None else bias[edges.long()])
    out = softmax_aggregate(graph, logits, v[source])
    grads = torch.autograd.grad(out, list(operands.values()), p.grad.double())
    total = torch.zeros_like(out[..., 0])
    total.index_add_(0, rows, logits.detach().exp())
    found = dict(zip(operands, grads, strict=True))
    return {"out": out.detach(), **found}, total.log2()


def check(p: Problem) -> dict[str, Tensor]:
    """Compare everything with the float64 formula; returns what ``run`` gave."""
    got, (want, lse) = run(p), reference(p)
    rows = p.graph.by_dst.indptr.diff() > 0
    torch.testing.assert_close(got["lse"][rows].double(), lse[rows], rtol=0, atol=2e-2)
    assert not got["out"][~rows].any() and not got["q"][~rows].any()
    for name in want:
        assert got[name].shape == want[name].shape and got[name].dtype == p.q.dtype
        difference = (got[name].double() - want[name]).abs()
        error = difference.max().item() / scale_of(name, want) if difference.numel() else 0.0
        assert error <= TOLERANCE[p.q.dtype][name != "out"], f"{name}: {error:.1e}"
    return got


def duplicates() -> Edges:
    edges = datasets.uniform(30, 25, 90, seed=3)
    return torch.cat([edges, edges[:, :40], edges[:, :20], edges[:, :1].expand(2, 30)], 1), 30, 25


GRAPHS: dict[str, Edges] = {
    "block model": (datasets.block_model(50, 20, 0.5, seed=1), 50, 50),
    "sparse": (datasets.uniform(300, 70, 250, seed=2), 300, 70),
    "hubs": edges_with_hubs(),
    "duplicates": duplicates(),
    "one edge": (torch.tensor([[3], [17]]), 5, 18),
    "no edges": (torch.empty(2, 0, dtype=torch.int64), 4, 20),
}
