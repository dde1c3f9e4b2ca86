"""Problems for aggregation and the float64 oracle to judge them by; without pytest."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops.aggregation import MESSAGES, aggregate
from tests.ops.operators import draw
from tests.ops.support import edges_with_hubs

#: Largest error relative to the largest reference value, of results and of gradients.
LIMIT = {
    torch.float64: (1e-12, 1e-11),
    torch.float32: (5e-6, 2e-5),
    torch.float16: (2e-3, 8e-3),
    torch.bfloat16: (1.2e-2, 5e-2),
}
DTYPES = tuple(LIMIT)


@dataclasses.dataclass
class Case:
    """Operands of one call, leaves that want gradients."""

    graph: Graph
    x: Tensor
    reduce: str | Sequence[str]
    edge: Tensor | None = None
    message: str = "copy"
    ties: str = "even"
    nan: str = "propagate"
    temperature: Tensor | None = None
    power: Tensor | float | None = None

    @property
    def leaves(self) -> dict[str, Tensor]:
        named = {n: getattr(self, n) for n in ("x", "edge", "temperature", "power")}
        return {n: t for n, t in named.items() if isinstance(t, Tensor) and t.requires_grad}

    def call(self) -> tuple[Tensor, ...]:
        out = aggregate(
            self.graph, self.x, self.reduce, edge=self.edge, message=self.message, ties=self.ties,
            nan=self.nan, temperature=self.temperature, power=self.power,
        )  # fmt: skip
        return out if isinstance(out, tuple) else (out,)


def case(
    reduce: str | Sequence[str],
    shape: tuple[int, ...] = (8,),
    edge: tuple[int, ...] | None = None,
    dtype: torch.dtype = torch.float32,
    message: str = "copy",
    *,
    edges: tuple[Tensor, int, int] | None = None,
    device: str = "cpu",
    **options: object,
) -> Case:
    """Seeded operands of few distinct values, so that there are ties."""
    edge_index, num_src, num_dst = edges_with_hubs() if edges is None else edges
    graph = Graph.from_edge_index(edge_index.to(device), num_src, num_dst)
    x = draw(num_src, shape, dtype, 1).to(device).requires_grad_()
    e = None
    if edge is not None:
        e = draw(edge_index.shape[1], edge, dtype, 2).to(device).requires_grad_()
    return Case(graph, x, reduce, e, message, **options)  # type: ignore[arg-type]


def gradients(c: Case, out: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Of every leaf, for seeded cotangents."""
    seeds = [draw(o.shape[0], tuple(o.shape[1:]), o.dtype, 9 + i) for i, o in enumerate(out)]
    seeds = [s.to(o.device) for s, o in zip(seeds, out, strict=True)]
    found = torch.autograd.grad(out, list(c.leaves.values()), seeds, allow_unused=True)
    pairs = zip(c.leaves.items(), found, strict=True)
    return {n: torch.zeros_like(t) if g is None else g for (n, t), g in pairs}


def near(name: str, got: Tensor, want: Tensor, limit: float) -> None:
    """NaN and infinities at the same places, the rest near beside the largest value."""
    assert got.shape == want.shape, f"{name}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    odd = ~want.isfinite()
    same = torch.equal(got[odd].double().nan_to_num(7.5), want[odd].double().nan_to_num(7.5))
    assert same and got[~odd].isfinite().all(), f"{name}: NaN or infinities differ"
    if odd.all():
        return
    error = (got.double() - want.double())[~odd].abs().max().item()
    most = max(want[~odd].abs().max().item(), 1e-30)
    assert error <= limit * most, f"{name}: relative error {error / most:.2e} above {limit:.0e}"


__all__ = ["DTYPES", "LIMIT", "MESSAGES", "Case", "case", "gradients", "near"]
