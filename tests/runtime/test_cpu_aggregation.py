"""The CPU's aggregations against plain torch in float64: values and every gradient."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.runtime import cpu_aggregation, cpu_call
from gnn_backend.runtime.aggregation import Message
from tests.runtime.aggregation_cases import (
    ALL,
    Case,
    draw,
    edge_operand,
    engine_results,
    oracle_results,
)
from tests.runtime.cpu_cases import (
    LargestTensor,
    assert_close,
    skewed_graph,
    with_64_bit_offsets,
)

pytestmark = pytest.mark.sampled(15)

TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5}
LINEAR = ("sum", "square", "max", "min")
FORMS = [
    ("copy", None, "even"),
    ("copy", None, "first"),
    ("mul", "number", "even"),
    ("mul", "heads", "even"),
    ("mul", "heads", "first"),
    ("mul", "rows", "even"),
    ("mul", "rows", "first"),
    ("add", "heads", "even"),
    ("add", "rows", "even"),
    ("add_relu", "heads", "first"),
    ("add_relu", "rows", "even"),
]


@pytest.fixture
def many_blocks(monkeypatch):
    """Cut even small graphs into many blocks, so that rows are split."""
    monkeypatch.setattr(cpu_call, "BLOCK_WORK", 1)


def make_case(kind, form, heads, width, dtype=torch.float64, graph=None, **more):
    graph = skewed_graph() if graph is None else graph
    edge = None if form is None else edge_operand(graph, form, heads, width, dtype)
    return Case(graph, kind, draw(graph.num_src, heads, width, dtype=dtype), edge, **more)


def check(case, tolerance=None):
    assert_close(engine_results(case), oracle_results(case), tolerance or TOLERANCE[case.x.dtype])


@pytest.mark.parametrize(("kind", "form", "ties"), FORMS)
def test_equals_torch_with_split_rows(many_blocks, kind, form, ties):
    check(make_case(kind, form, 3, 5, first=ties == "first", temperature=0.7))


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 17), (1, 100), (1, 300)])
def test_equals_torch_at_any_width(shape):
    check(make_case("copy", None, *shape, torch.float32, wanted=LINEAR))


@pytest.mark.parametrize("wanted", [("sum",), ("min",), ("softmax",)])
@pytest.mark.thorough
def test_one_reduction(wanted):
    check(make_case("copy", None, 1, 300, torch.float32, wanted=wanted), 1e-4)
    if wanted == ("sum",):
        check(make_case("mul", "heads", 2, 17, torch.float32, wanted=wanted))


@pytest.mark.parametrize("first", [False, True], ids=["even", "first"])
@pytest.mark.parametrize("nan_wins", [True, False], ids=["propagate", "skip"])
@pytest.mark.parametrize("blocks", [1, 1 << 20], ids=["split", "whole"])
def test_ties_zeros_and_nan(monkeypatch, blocks, nan_wins, first):
    monkeypatch.setattr(cpu_call, "BLOCK_WORK", blocks)
    graph = skewed_graph()
    x = draw(graph.num_src, 2, 20).round().clamp(-1, 1)
    x[::3].clamp_(max=0.0)
    how = {"wanted": ("max", "min"), "first": first, "nan_wins": nan_wins}
    check(Case(graph, "copy", x, **how))
    x[4, 0] = x[31, 1, 3] = torch.nan
    x[:, 1, 5] = torch.nan  # rows in which nothing but NaN is
    case = Case(graph, "copy", x, **how)
    expected = oracle_results(case)
    assert expected["max"].isnan().any() == nan_wins
    assert_close(engine_results(case), expected, 1e-12)
    if first:
        x[:, 0, 7], x[:, 1, 8] = -torch.inf, torch.inf
        check(case)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_messages_are_compared_as_stock_rounds_them(dtype):
    graph = skewed_graph()
    x, edge = draw(graph.num_src, 1, 20, dtype=dtype), draw(graph.num_edges, dtype=dtype, seed=4)
    case = Case(graph, "mul", x, edge, wanted=("max",))
    got = engine_results(case)
    ids, sources = graph.by_dst.edge_ids.long(), graph.by_dst.indices.long()
    rounded = x[sources] * edge[ids].view(-1, 1, 1)  # in 16 bits, so that there are ties
    rows = torch.repeat_interleave(torch.arange(graph.num_dst), graph.by_dst.indptr.diff().long())
    index = rows.view(-1, 1, 1).expand_as(rounded)
    out = torch.zeros(got["max"].shape, dtype=dtype)
    out = out.scatter_reduce(0, index, rounded, "amax", include_self=False)
    assert torch.equal(got["max"], out)
    won = (rounded == out.gather(0, index)).double()
    ties = torch.zeros(out.shape, dtype=torch.double).scatter_add(0, index, won)
    assert (ties > 1).any()
    slope = won * (case.cotangents["max"] / ties).gather(0, index) * edge[ids].view(-1, 1, 1)
    expected = torch.zeros(x.shape, dtype=torch.double).index_add(0, sources, slope)
    assert_close({"x": got["grad_x"]}, {"x": expected}, 2e-2)


@pytest.mark.parametrize("first", [False, True], ids=["even", "first"])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf])
def test_infinities(many_blocks, value, first):
    graph = skewed_graph()
    x = draw(graph.num_src, 2, 20)
    x[3, 0, 4] = x[5, 0, 6] = value
    x[:, 0, 7] = value
    check(Case(graph, "copy", x, wanted=("max", "min"), first=first))


@pytest.mark.parametrize("value", [torch.inf, -torch.inf])
def test_infinities_in_sums(many_blocks, value):
    graph = skewed_graph()
    x = draw(graph.num_src, 3, 5)
    x[3, 0, 4], x[:, 0, 2] = value, value
    check(Case(graph, "copy", x))


def test_a_product_of_zeros(many_blocks):
    edges = torch.tensor([[0, 1, 2, 2, 3, 4, 1, 5, 5, 6, 7], [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3]])
    graph = Graph.from_edge_index(edges, 8, 5)
    x = draw(8, 1, 6)
    x[0, 0, :3] = x[3, 0, 1:4] = x[4, 0, 2:] = x[5, 0, 3] = 0.0
    case = Case(graph, "copy", x, wanted=("mul",))
    assert (oracle_results(case)["mul"][4] == 1).all()  # no edges
    check(case)
    x[2, 0, 1] = torch.inf
    check(case)


@pytest.mark.parametrize("shape", [(), (1,), (14,), (2, 7)], ids=str)
def test_gradient_of_the_temperature(many_blocks, shape):
    temperature = 1.0 + draw(*shape, seed=8) * 0.3
    check(make_case("copy", None, 2, 7, wanted=("softmax", "sum"), temperature=temperature))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_rows_are_widened(dtype):
    case = make_case("copy", None, 2, 20, dtype, wanted=LINEAR)
    got, wide = engine_results(case), Case(case.graph, "copy", case.x.float(), wanted=LINEAR)
    expected = engine_results(wide)
    assert got["sum"].dtype == got["square"].dtype == torch.float32
    assert got["max"].dtype == got["min"].dtype == got["grad_x"].dtype == dtype
    assert all(torch.equal(got[name], expected[name].to(got[name].dtype)) for name in got)


@pytest.mark.parametrize("sizes", [(0, 0), (5, 0), (0, 4), (5, 4)])
@pytest.mark.parametrize("first", [False, True])
def test_no_edges(sizes, first):
    graph = Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.long), *sizes)
    check(make_case("mul", "rows", 2, 3, graph=graph, first=first, temperature=torch.ones(())))


def test_no_features():
    got = engine_results(make_case("mul", "heads", 2, 0))
    assert got["sum"].shape == (skewed_graph().num_dst, 2, 0)
    assert (got["grad_edge"] == 0).all()


@pytest.mark.thorough
def test_only_needed_gradients():
    case = make_case("mul", "heads", 3, 5, first=True)
    everything = engine_results(case)
    for name, needs in (("grad_x", (True, False)), ("grad_edge", (False, True))):
        got = engine_results(case, *needs)
        assert {n for n in got if n.startswith("grad_")} == {name}
        assert torch.equal(got[name], everything[name])


def test_values_are_the_same_where_nothing_is_saved(many_blocks):
    case = make_case("copy", None, 3, 5)
    got, expected = engine_results(case, save=False), engine_results(case)
    assert set(got) == set(ALL)
    assert all(torch.equal(got[name], expected[name]) for name in got)


@pytest.mark.parametrize("first", [False, True])
def test_runs_are_bit_identical_for_any_number_of_threads(many_blocks, first):
    graph = skewed_graph(edges=5000)
    case = make_case("mul", "heads", 3, 5, graph=graph, first=first)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 2, 4):
            torch.set_num_threads(threads)
            results.append(engine_results(case))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(result[name], results[0][name]) for name in result)


@pytest.mark.thorough
def test_64_bit_offsets():
    graph = skewed_graph()
    case = make_case("copy", None, 1, 8, graph=graph, first=True)
    expected = engine_results(case)
    case.graph = with_64_bit_offsets(graph)
    got = engine_results(case)
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_gradcheck():
    graph = skewed_graph(12, 10, 40)
    x, edge, temperature = draw(12, 2, 3), draw(40, 2, seed=4), torch.tensor(0.8).double()

    class Aggregate(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, edge, temperature):
            how = {"first": False, "nan_wins": True, "temperature": temperature}
            message = Message("mul", x, edge)
            found = cpu_aggregation.aggregate_forward(graph, message, ALL, **how, save=True)
            ctx.save_for_backward(x, edge, temperature)
            ctx.found = found
            return tuple(found.values[name].clone() for name in ALL)

        @staticmethod
        def backward(ctx, *grads):
            x, edge, temperature = ctx.saved_tensors
            how = {"first": False, "nan_wins": True, "temperature": temperature}
            return cpu_aggregation.aggregate_backward(
                graph,
                Message("mul", x, edge),
                ctx.found,
                dict(zip(ALL, grads, strict=True)),
                **how,
                needs_x=True,
                needs_edge=True,
            )

    leaves = [tensor.requires_grad_() for tensor in (x, edge, temperature)]
    assert torch.autograd.gradcheck(Aggregate.apply, leaves, eps=1e-6, atol=1e-6)


def test_nothing_edge_wise_is_allocated():
    graph = skewed_graph(200, 150, 40_000)
    _ = graph.by_src
    case = make_case("copy", None, 3, 5, graph=graph)
    with LargestTensor() as largest:
        engine_results(case)
    assert 0 < largest.size < graph.num_edges * 8 * 2  # two numbers an edge


def test_unknown_names_are_rejected():
    case = make_case("copy", None, 1, 4)
    with pytest.raises(InvalidArgument, match="wanted: unknown primitives"):
        engine_results(Case(case.graph, "copy", case.x, wanted=("median",)))
    with pytest.raises(InvalidArgument, match="message: unknown kind"):
        engine_results(Case(case.graph, "sub", case.x))


def test_positions_of_the_first_winners():
    case = make_case("copy", None, 3, 5)
    message, how = Message("copy", case.x, None), {"nan_wins": True, "temperature": None}
    found = cpu_aggregation.aggregate_forward(
        case.graph, message, ALL, first=True, **how, save=True
    )
    position = found.saved["max_first"]
    assert position.dtype == torch.int32
    empty = case.graph.by_dst.indptr.diff() == 0
    assert (position[empty] == -1).all()
    winners = case.graph.by_dst.indices[position[~empty].long()].long()
    assert torch.equal(case.x.gather(0, winners), found.values["max"][~empty])
