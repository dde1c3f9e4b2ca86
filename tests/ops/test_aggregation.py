"""Aggregation in plain torch against PyG's own aggregations, values and all gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.ops import aggregate
from gnn_backend.ops.aggregation import REDUCTIONS, spmm
from tests.ops.aggregations import Case, case, gradients, near, plain_torch
from tests.ops.support import edges_with_hubs

pytestmark = pytest.mark.sampled(5)

EDGES, NUM_SRC, NUM_DST = edges_with_hubs()


@pytest.fixture(autouse=True)
def without_engine() -> Iterator[None]:
    with plain_torch():
        yield


SOME = ("copy", None), ("mul", ()), ("mul", (2,)), ("add", (2, 4)), ("add_relu", (2, 1))


def pyg(c: Case, name: str) -> Tensor:
    """What PyG gives for the same messages."""
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    kinds = {
        "softmax": lambda: aggr.SoftmaxAggregation(learn=isinstance(c.temperature, Tensor)),
        "powermean": lambda: aggr.PowerMeanAggregation(learn=isinstance(c.power, Tensor)),
    }
    titles = {"mul": "MulAggregation", "var": "VarAggregation", "std": "StdAggregation"}
    make = kinds.get(name) or getattr(aggr, titles.get(name, f"{name.title()}Aggregation"))
    module = make().to(c.x.dtype)
    if isinstance(c.temperature, Tensor) and name == "softmax":
        del module.t
        module.t = c.temperature
    if c.power is not None and name == "powermean":
        if isinstance(c.power, Tensor):
            del module.p
        module.p = c.power
    x = c.x[EDGES[0]]
    if c.edge is not None:
        e = c.edge.reshape(*c.edge.shape, *(1,) * (x.dim() - c.edge.dim()))
        x = {"mul": x * e, "add": x + e, "add_relu": torch.relu(x + e)}[c.message]
    width = x.shape[1:]
    out: Tensor = module(x.reshape(x.shape[0], -1), EDGES[1], dim_size=NUM_DST)
    return out.view(NUM_DST, *width)


def check(c: Case) -> None:
    names = (c.reduce,) if isinstance(c.reduce, str) else c.reduce
    got = c.call()
    want = tuple(pyg(c, name) for name in names)
    for name, a, b in zip(names, got, want, strict=True):
        near(name, a.detach(), b.detach(), 1e-12)
    found, expected = gradients(c, got), gradients(c, want)
    for name, value in expected.items():
        near(f"gradient of {name}", found[name], value, 1e-11)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize(("message", "edge"), SOME)
def test_equals_pyg(name: str, message: str, edge: tuple[int, ...] | None) -> None:
    check(case(name, (2, 4), edge, torch.float64, message))


def test_several_at_once() -> None:
    check(case(REDUCTIONS, (5,), None, torch.float64))
    assert len(case(("add", "sum", "max"), (3,)).call()) == 3


@pytest.mark.parametrize("value", [0.5, torch.tensor([0.7], dtype=torch.float64)])
def test_temperature_and_power(value: Tensor | float) -> None:
    leaf = value.clone().requires_grad_() if isinstance(value, Tensor) else value
    c = case("softmax", (6,), None, torch.float64)
    c.temperature = leaf if isinstance(leaf, Tensor) else torch.tensor(leaf, dtype=torch.float64)
    check(c)
    c = case("powermean", (6,), None, torch.float64, power=3 * leaf)
    check(c)


def test_temperature_of_each_channel() -> None:
    c = case("softmax", (2, 3), None, torch.float64)
    t = torch.linspace(-1, 2, 6, dtype=torch.float64).view(2, 3).requires_grad_()
    c.temperature = t
    (out,) = c.call()
    parts = []
    for h in range(2):
        for d in range(3):
            one = Case(c.graph, c.x[:, h, d], "softmax", temperature=t[h, d])
            parts.append(one.call()[0])
    near("softmax", out.detach(), torch.stack(parts, 1).view(-1, 2, 3).detach(), 1e-12)


def test_nan() -> None:
    c = case(("max", "min", "sum"), (4,), None, torch.float64)
    with torch.no_grad():
        c.x[5, 1] = float("nan")
    check(c)
    c.nan = "skip"
    most, least, _ = c.call()
    assert most.isfinite().all() and least.isfinite().all()
    (found,) = torch.autograd.grad(most.sum() + least.sum(), c.x)
    assert found.isfinite().all() and found[5, 1] == 0


def test_first_of_equals() -> None:
    graph = Graph.from_edge_index(torch.tensor([[2, 0, 1, 1], [0, 0, 0, 1]]), 3, 2)
    x = torch.tensor([[3.0], [3.0], [1.0]], requires_grad=True)
    for ties, want in (("first", [1.0, 1.0, 0.0]), ("even", [0.5, 1.5, 0.0])):
        (found,) = torch.autograd.grad(aggregate(graph, x, "max", ties=ties).sum(), x)
        assert found.flatten().tolist() == want


def test_second_derivatives() -> None:
    c = case(("sum", "softmax", "mul", "var"), (2, 2), (2,), torch.float64, "mul",
             edges=(torch.tensor([[0, 1, 2, 1], [0, 0, 1, 1]]), 3, 3))  # fmt: skip
    c.temperature = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)

    def f(x: Tensor, edge: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        return Case(c.graph, x, c.reduce, edge, "mul", temperature=t).call()

    assert torch.autograd.gradcheck(f, (c.x, c.edge, c.temperature))
    assert torch.autograd.gradgradcheck(f, (c.x, c.edge, c.temperature))


@pytest.mark.parametrize(("num_src", "num_dst"), [(0, 0), (4, 0), (0, 4), (4, 6)])
def test_no_edges(num_src: int, num_dst: int) -> None:
    graph = Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.int64), num_src, num_dst)
    for name, out in zip(REDUCTIONS, aggregate(graph, torch.ones(num_src, 3), REDUCTIONS),
                         strict=True):  # fmt: skip
        assert out.shape == (num_dst, 3)
        assert (out == (name == "mul")).all() or name == "powermean"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits(dtype: torch.dtype) -> None:
    c = case(("sum", "mean", "max", "softmax"), (8,), None, dtype)
    assert {out.dtype for out in c.call()} == {dtype}


def test_spmm() -> None:
    c = case("sum", (2, 4), (2,), torch.float64, "mul")
    assert c.edge is not None
    assert torch.equal(spmm(c.graph, c.x, c.edge), c.call()[0])
    plain = torch.zeros(NUM_DST, 2, 4, dtype=torch.float64).index_add(0, EDGES[1], c.x[EDGES[0]])
    torch.testing.assert_close(spmm(c.graph, c.x), plain)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reduce": "median"}, "reduce: unknown"),
        ({"reduce": ()}, "reduce: empty"),
        ({"message": "sub"}, "message: unknown"),
        ({"ties": "last"}, "ties: unknown"),
        ({"nan": "keep"}, "nan: unknown"),
        ({"x": torch.ones(3, 2)}, "x: wrong shape"),
        ({"x": torch.ones(NUM_SRC, 2, dtype=torch.int64)}, "x: wrong dtype"),
        ({"edge": torch.ones(EDGES.shape[1])}, "edge: unused"),
        ({"message": "mul"}, "edge: missing"),
        ({"message": "mul", "edge": torch.ones(4)}, "edge: wrong shape"),
        ({"message": "mul", "edge": torch.ones(EDGES.shape[1], 3)}, "edge: wrong shape"),
        ({"message": "mul", "edge": torch.ones(EDGES.shape[1]).half()}, "mixed dtypes"),
        ({"temperature": "warm"}, "temperature: wrong type"),
        ({"temperature": torch.ones(3)}, "temperature: wrong shape"),
        ({"power": torch.ones(2, dtype=torch.int64)}, "power: wrong dtype"),
    ],
)
def test_bad_arguments(change: dict[str, object], message: str) -> None:
    graph = Graph.from_edge_index(EDGES, NUM_SRC, NUM_DST)
    call = {"x": torch.ones(NUM_SRC, 2), "reduce": "sum", **change}
    with pytest.raises(InvalidArgument, match=message):
        aggregate(graph, **call)  # type: ignore[arg-type]


def test_graph_is_checked() -> None:
    with pytest.raises(InvalidArgument, match="graph: not a graph"):
        aggregate(EDGES, torch.ones(3, 2), "sum")  # type: ignore[arg-type]
