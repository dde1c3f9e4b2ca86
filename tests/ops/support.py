"""Problems for the operator tests and the float64 twin to judge them by.

Imports neither pytest nor Numba, so that ``python -m tests.gpu`` can use it anywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops.attention import gatv2_attention
from gnn_backend.ops.functors import FUNCTORS

NAMES = FUNCTORS["gatv2"].operands
#: Largest error of the output and of each gradient, relative to the largest reference value.
#: 16 bits: a unit in the last place of the output, which also sees x_src + x_dst rounded to 16
#: bits; gradients see the rounded output as well.
TOLERANCE = {
    torch.float64: (1e-13, 1e-12),
    torch.float32: (1e-5, 2e-5),
    torch.float16: (1e-3, 8e-3),
    torch.bfloat16: (4e-3, 6e-2),
}
HEADS = (1, 2, 3, 8)
DIMS = (1, 3, 7, 8, 16, 33, 64, 127, 256, 512, 1024)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SLOPES = (0.2, 0.0, 1.0, 1.5, -0.3)
#: Every pair of (heads, width), (width, dtype) and (heads, dtype), slopes in turn.
TABLE = [
    (heads, dim, DTYPES[(i + j + 2) % 3], SLOPES[(i + 2 * j) % 5])
    for i, dim in enumerate(DIMS)
    for j, heads in enumerate(HEADS)
]


@dataclasses.dataclass
class Problem:
    """Inputs of one ``gatv2_attention`` call with a cotangent."""

    graph: Graph
    operands: dict[str, Tensor]
    cotangent: Tensor
    slope: float = 0.2

    def with_operands(self, **changed: Tensor) -> Problem:
        return dataclasses.replace(self, operands={**self.operands, **changed})


def edges_with_hubs(seed: int = 0) -> tuple[Tensor, int, int]:
    """220 edges between 37 sources and 29 destinations.

    Destination 3 has over 60 in-edges and source 5 over 50 out-edges; destinations 0 and 28 have
    none, source 36 has none; there are self-loops and duplicates.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, count: int) -> Tensor:
        return torch.randint(low, high, (count,), generator=generator)

    src = torch.cat([draw(0, 36, 60), torch.full((50,), 5), draw(0, 36, 100), torch.arange(1, 11)])
    dst = torch.cat([torch.full((60,), 3), draw(1, 28, 150), torch.arange(1, 11)])
    edges = torch.stack([src, dst])
    edges[:, 100:105] = edges[:, 110:115]
    return edges[:, torch.randperm(edges.shape[1], generator=generator)], 37, 29


def problem(
    heads: int = 2,
    dim: int = 64,
    dtype: torch.dtype = torch.float32,
    *,
    edges: tuple[Tensor, int, int] | None = None,
    slope: float = 0.2,
    seed: int = 0,
    device: str = "cpu",
) -> Problem:
    """Seeded normal operands, scaled so that logits are of order one."""
    edge_index, num_src, num_dst = edges_with_hubs() if edges is None else edges
    graph = Graph.from_edge_index(edge_index.to(device), num_src, num_dst)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    values = {
        "x_src": normal(num_src, heads, dim),
        "x_dst": normal(num_dst, heads, dim),
        "att": normal(heads, dim) * 2 * max(dim, 1) ** -0.5,
    }
    operands = {n: v.to(device, dtype).requires_grad_() for n, v in values.items()}
    return Problem(graph, operands, normal(num_dst, heads, dim).to(device, dtype), slope)


def attention(p: Problem) -> Tensor:
    return gatv2_attention(p.graph, *(p.operands[n] for n in NAMES), negative_slope=p.slope)


def gradients(out: Tensor, p: Problem) -> dict[str, Tensor]:
    found = torch.autograd.grad(out, [p.operands[n] for n in NAMES], p.cotangent)
    return dict(zip(NAMES, found, strict=True))


def run(p: Problem) -> dict[str, Tensor]:
    """The output (``out``) and the gradient of each operand."""
    out = attention(p)
    return {"out": out.detach(), **gradients(out, p)}


def twin(p: Problem) -> Tensor:
    return FUNCTORS["gatv2"].twin(p.graph, p.operands, {"negative_slope": p.slope})


def as_dtype(p: Problem, dtype: torch.dtype) -> Problem:
    """The same values in another dtype, as new leaves."""
    operands = {n: t.detach().to(dtype).requires_grad_() for n, t in p.operands.items()}
    return Problem(p.graph, operands, p.cotangent.to(dtype), p.slope)


def reference(p: Problem, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """What ``run`` should return: the plain torch twin on the same values, in ``dtype``."""
    q = as_dtype(p, dtype)
    out = twin(q)
    return {"out": out.detach(), **gradients(out, q)}


def scale_of(name: str, want: Mapping[str, Tensor]) -> float:
    """What an error is divided by: the largest reference value.

    A gradient that cancels to next to nothing (slope 1: that of x_dst is 0) is judged beside a
    tenth of the largest gradient instead.
    """
    own = want[name].abs().max().item() if want[name].numel() else 0.0
    gradients = [w.abs().max().item() for n, w in want.items() if n != "out" and w.numel()]
    largest = max(gradients, default=0.0) if name != "out" else 0.0
    return max(own if own > 1e-3 * largest else 0.1 * largest, 1e-30)


def check(
    got: Mapping[str, Tensor],
    want: Mapping[str, Tensor],
    dtype: torch.dtype,
    names: Iterable[str] | None = None,
    factor: float = 1.0,
) -> None:
    """Raise AssertionError naming the worst of the output and the gradients."""
    for name in want if names is None else names:
        assert got[name].shape == want[name].shape, f"{name}: shape {tuple(got[name].shape)}"
        assert got[name].dtype == dtype, f"{name}: dtype {got[name].dtype}"
        limit = TOLERANCE[dtype][name != "out"] * factor
        difference = (got[name].double() - want[name].double()).abs()
        error = difference.max().item() / scale_of(name, want) if difference.numel() else 0.0
        # NaN differs from everything.
        assert error <= limit, f"{name}: relative error {error:.2e} is above {limit:.0e}"


def check_problem(p: Problem, factor: float = 1.0) -> dict[str, Tensor]:
    """Run the operator, compare everything with the float64 twin, return what it gave."""
    got = run(p)
    check(got, reference(p), p.cotangent.dtype, factor=factor)
    return got


def same_bits(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether all results are equal bit for bit (NaN equals NaN)."""
    return all(
        torch.equal(a[n].contiguous().view(torch.uint8), b[n].contiguous().view(torch.uint8))
        for n in a
    )
