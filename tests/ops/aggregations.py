"""Problems for aggregation and the float64 oracle to judge them by; without pytest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph
from gnn_backend.ops import reduced_messages
from gnn_backend.ops.aggregation import aggregate
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


@contextmanager
def plain_torch() -> Iterator[None]:
    """Aggregate without an engine."""
    nothing = Unsupported("no-kernel", "a test wants plain torch")
    with mock.patch.object(reduced_messages, "aggregation_engine", side_effect=nothing):
        yield


def oracle(c: Case) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Results and gradients of the same values in float64, by plain torch."""
    wide = {n: t.detach().double().requires_grad_() for n, t in c.leaves.items()}
    exact = dataclasses.replace(c, **wide)
    with plain_torch():
        out = exact.call()
    return tuple(o.detach() for o in out), gradients(exact, out)


def check_case(c: Case, factor: float = 1.0) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Run the operator, compare results and gradients with the oracle, return what it gave."""
    dtype, names = c.x.dtype, (c.reduce,) if isinstance(c.reduce, str) else c.reduce
    got = c.call()
    found = gradients(c, got)
    want, expected = oracle(c)
    limits = [factor * limit for limit in LIMIT[dtype]]
    for name, a, b in zip(names, got, want, strict=True):
        assert a.dtype == dtype, f"{name}: dtype {a.dtype}"
        near(name, a.detach(), b, limits[0])
    for name, grad in expected.items():
        near(f"gradient of {name}", found[name], grad, limits[1])
    return tuple(o.detach() for o in got), found


PNA = ("mean", "max", "min", "std")
#: Every statistic, message, access, dtype, rule and kind of layout, in few kernels.
TABLE = [
    # reduce, message, shape of x, shape of edge, dtype, ties, nan
    (PNA, "copy", (128,), None, torch.float32, "even", "propagate"),
    (PNA, "copy", (128,), None, torch.bfloat16, "first", "propagate"),
    ("max", "copy", (64,), None, torch.float32, "even", "propagate"),
    ("max", "copy", (2, 64), None, torch.float32, "first", "skip"),
    ("min", "copy", (136,), None, torch.bfloat16, "even", "skip"),
    (("max", "min"), "copy", (3,), None, torch.float16, "first", "skip"),
    (("max", "sum"), "mul", (2, 4), (2,), torch.float32, "even", "propagate"),
    (("min", "mean"), "mul", (5,), (), torch.float64, "first", "propagate"),
    (("max", "var"), "add", (3, 5), (3, 1), torch.bfloat16, "even", "propagate"),
    (("max", "min"), "add_relu", (8,), (8,), torch.float32, "even", "propagate"),
    ("sum", "add_relu", (2, 33), (2,), torch.float32, "even", "propagate"),
    ("mean", "add_relu", (260,), (260,), torch.float16, "even", "propagate"),
    ("mul", "copy", (8,), None, torch.float32, "even", "propagate"),
    (("mul", "softmax"), "mul", (7,), (7,), torch.float64, "even", "propagate"),
    ("softmax", "copy", (2, 16), None, torch.float32, "even", "propagate"),
    ("softmax", "add", (2, 40), (2,), torch.bfloat16, "even", "propagate"),
    (("std", "sum", "var", "mean"), "copy", (), None, torch.float32, "even", "propagate"),
    ("std", "mul", (4, 8), (4, 8), torch.float32, "even", "propagate"),
    ("powermean", "copy", (8,), None, torch.float32, "even", "propagate"),
    (("sum", "mean"), "copy", (4,), None, torch.float64, "even", "propagate"),
]
#: Sums and means alone.
LINEAR = [
    (reduce, message, shape, edge, dtype, "even", "propagate")
    for reduce, message, shape, edge, dtype in (
        ("sum", "copy", (128,), None, torch.float32),
        ("mean", "copy", (2, 64), None, torch.bfloat16),
        ("sum", "mul", (2, 64), (2,), torch.float32),
        ("mean", "mul", (5,), (5,), torch.float64),
        ("sum", "mul", (3, 4), (), torch.float16),
        ("sum", "add", (2, 4), (2, 1), torch.float32),
        ("mean", "add", (6,), (6,), torch.float32),
    )
]
Row = tuple[
    str | tuple[str, ...], str, tuple[int, ...], tuple[int, ...] | None, torch.dtype, str, str
]


def case_of(row: Row, device: str = "cpu") -> Case:
    """The case of a row of the table; softmax with a temperature that wants a gradient."""
    reduce, message, shape, edge, dtype, ties, nan = row
    c = case(reduce, shape, edge, dtype, message, ties=ties, nan=nan, device=device)
    if "softmax" in reduce:
        values = torch.linspace(-0.5, 1.5, 1 if len(shape) > 1 else c.x.shape[1:].numel())
        heat = values.to(device, torch.promote_types(dtype, torch.float32))
        c.temperature = heat.requires_grad_()
    if reduce == "powermean":
        c.power = torch.tensor(2.5, dtype=torch.float32, device=device, requires_grad=True)
    return c


def with_specials(c: Case) -> Case:
    """NaN and infinities among the sources' rows."""
    with torch.no_grad():
        rows = c.x.view(c.x.shape[0], -1)
        rows[5, 0], rows[7, 1], rows[9, 2], rows[11, 3] = (
            float("nan"), float("inf"), -float("inf"), float("nan"),
        )  # fmt: skip
    return c
