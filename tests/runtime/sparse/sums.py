"""Sums and means with gradients, over the path that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnn_backend import config
from gnn_backend.graph import Graph
from gnn_backend.ops import aggregate

#: Largest difference of two orders of summation, relative to the largest value; float32 as tf32.
TOLERANCE = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 2e-3}


class Sum(NamedTuple):
    """One call: edges, dtype, heads, columns of a head, values an edge."""

    edges: tuple[Tensor, int, int]
    dtype: torch.dtype
    heads: int
    dim: int
    values: int = 0
    reduce: str = "sum"
    device: str = "cpu"


def run(
    case: Sum, path: str, change: Callable[[Tensor], Any] = lambda _: None,
    graph: Graph | None = None,
) -> list[Tensor]:  # fmt: skip
    """Output and gradients; ``change`` is called with the table before it is summed."""
    edge_index, num_src, num_dst = case.edges
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(case.device, case.dtype)

    x, edge = draw(num_src, case.heads, case.dim), None
    change(x)
    leaves = [x.requires_grad_()]
    if case.values:
        tail = (case.values,) if case.values > 1 else ()
        edge = draw(edge_index.shape[1], *tail).requires_grad_()
        leaves.append(edge)
    graph = graph or Graph.from_edge_index(edge_index.to(case.device), num_src, num_dst)
    message = "copy" if edge is None else "mul"
    with config.override(aggregation_path=path):
        out = aggregate(graph, x, case.reduce, edge=edge, message=message)
        grads = torch.autograd.grad(out, leaves, draw(*out.shape))
    return [out.detach(), *grads]


def close(got: list[Tensor], want: list[Tensor], dtype: torch.dtype) -> None:
    """Assert that both are the same but for the order of sums, NaN and infinities too."""
    for ours, theirs in zip(got, want, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.isinf(), theirs.isinf())
        if theirs.numel():
            finite = theirs.isfinite()
            difference = (ours - theirs).float()[finite].abs()
            scale = theirs.float()[finite].abs().max()
            assert difference.max() <= TOLERANCE[dtype] * scale, difference.max() / scale


def check_sum(case: Sum, path: str = "tiles") -> None:
    """Compare a path with the rows."""
    close(run(case, path), run(case, "rows"), case.dtype)
