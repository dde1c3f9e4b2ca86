"""The CPU engine against the plain-torch twin in float64: outputs and every gradient."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.runtime import cpu, cpu_call
from gnn_backend.runtime.launch import Cotangents, Saved
from tests.runtime.cpu_cases import (
    GATV2,
    SLOPE,
    LargestTensor,
    assert_close,
    cotangent,
    gatv2_operands,
    reference,
    run,
    skewed_graph,
    with_64_bit_offsets,
)

pytestmark = pytest.mark.sampled(5)

TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 5e-6,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
SHAPES = [(1, 1), (3, 1), (2, 8), (3, 16), (2, 17), (4, 32), (2, 64), (1, 100), (1, 128), (2, 150)]


@pytest.fixture
def many_blocks(monkeypatch):
    """Cut even small graphs into many blocks, so that rows are split."""
    monkeypatch.setattr(cpu_call, "BLOCK_WORK", 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_equals_the_twin(shape, dtype):
    graph = skewed_graph()
    operands = gatv2_operands(graph, *shape, dtype)
    assert_close(run(graph, operands), reference(graph, operands), TOLERANCE[dtype])


@pytest.mark.parametrize("shape", [(2, 5), (1, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_equals_the_twin_with_split_rows(many_blocks, shape, dtype):
    graph = skewed_graph()
    operands = gatv2_operands(graph, *shape, dtype)
    assert_close(run(graph, operands), reference(graph, operands), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_operands_are_widened_and_rounded_once(dtype):
    graph = skewed_graph()
    operands = gatv2_operands(graph, 2, 16, dtype)
    got = run(graph, operands)
    assert all(tensor.dtype == dtype for tensor in got.values())
    assert_close(got, reference(graph, operands), TOLERANCE[dtype])
    wide, *_ = cpu.softmax_forward(GATV2, graph, {k: v.float() for k, v in operands.items()}, SLOPE)
    assert torch.equal(got["out"], wide.to(dtype))


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0, 2.0, -0.5])
def test_any_negative_slope(slope):
    graph = skewed_graph()
    operands = gatv2_operands(graph, 2, 20)
    scalars = {"negative_slope": slope}
    assert_close(run(graph, operands, scalars), reference(graph, operands, scalars), 5e-6)


def test_derivative_at_zero_is_the_slope():
    graph = skewed_graph()
    operands = gatv2_operands(graph, 2, 12, torch.float64)
    # Small integers: most sums of a source and a destination feature are exactly 0.
    operands["x_src"] = operands["x_src"].round().clamp(-1, 1)
    operands["x_dst"] = -operands["x_dst"].round().clamp(-1, 1)
    rows = graph.by_dst.indptr.diff().long()
    sums = operands["x_src"][graph.by_dst.indices.long()] + operands["x_dst"].repeat_interleave(
        rows, 0
    )
    assert (sums == 0).double().mean() > 0.2
    assert_close(run(graph, operands), reference(graph, operands), 1e-12)


def test_large_logits():
    graph = skewed_graph()
    operands = gatv2_operands(graph, 2, 16, torch.float64)
    operands["att"] *= 1e4
    assert_close(run(graph, operands), reference(graph, operands), 1e-10)
    single = {name: tensor.float() for name, tensor in operands.items()}
    assert_close(run(graph, single), reference(graph, single), 5e-2)


@pytest.mark.parametrize("seed", range(4))
def test_hub_is_split_and_merged(many_blocks, seed):
    edges = torch.cat(
        [
            torch.stack([torch.arange(3000) % 70, torch.zeros(3000, dtype=torch.long)]),
            torch.stack([torch.zeros(2000, dtype=torch.long), torch.arange(2000) % 50]),
        ],
        1,
    )
    order = torch.randperm(edges.shape[1], generator=torch.Generator().manual_seed(seed))
    graph = Graph.from_edge_index(edges[:, order], 70, 55)
    operands = gatv2_operands(graph, 2, 24, torch.float64, seed)
    assert_close(run(graph, operands), reference(graph, operands), 1e-12)
    single = {name: tensor.float() for name, tensor in operands.items()}
    assert_close(run(graph, single), reference(graph, single), 3e-5)  # the twin itself: 3e-5


def test_rows_without_edges_are_zero():
    graph = skewed_graph()
    operands = gatv2_operands(graph, 2, 16)
    out, lse, _ = cpu.softmax_forward(GATV2, graph, operands, SLOPE)
    empty = graph.by_dst.indptr.diff() == 0
    assert empty.any()
    assert (out[empty] == 0).all()
    assert (lse[empty] == -torch.inf).all()
    got = run(graph, operands)
    assert (got["x_dst"][empty] == 0).all()
    assert (got["x_src"][graph.by_src.indptr.diff() == 0] == 0).all()


@pytest.mark.parametrize("sizes", [(0, 0), (5, 0), (0, 4), (5, 4)])
def test_no_edges(sizes):
    graph = Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.long), *sizes)
    operands = gatv2_operands(graph, 2, 3)
    got = run(graph, operands)
    for name, tensor in (operands | {"out": cotangent(graph, operands)}).items():
        assert torch.equal(got[name], torch.zeros_like(tensor))


def test_no_features():
    graph = skewed_graph()
    got = run(graph, gatv2_operands(graph, 2, 0))
    assert got["out"].shape == (graph.num_dst, 2, 0)
    assert got["att"].shape == (2, 0)


def test_self_loops_and_duplicates():
    edges = torch.tensor([[0, 1, 1, 1, 2, 2, 0], [0, 1, 1, 2, 2, 2, 1]])
    graph = Graph.from_edge_index(edges, 3, 3)
    operands = gatv2_operands(graph, 1, 4, torch.float64)
    assert_close(run(graph, operands), reference(graph, operands), 1e-12)


def _set(tensor, index, value):
    tensor[index] = value


INJECTIONS = {
    "-inf source": lambda o, g: _set(o["x_src"], (0, 0, 1), -torch.inf),
    "+inf source": lambda o, g: _set(o["x_src"], (0, 0, 1), torch.inf),
    "NaN source": lambda o, g: _set(o["x_src"], (2, 1, 0), torch.nan),
    "-inf destination": lambda o, g: _set(o["x_dst"], (4, 1, 2), -torch.inf),
    "+inf destination": lambda o, g: _set(o["x_dst"], (4, 1, 2), torch.inf),
    "NaN destination": lambda o, g: _set(o["x_dst"], (4, 0, 0), torch.nan),
    "inf parameter": lambda o, g: _set(o["att"], (1, 2), torch.inf),
    "zero parameter, inf source": lambda o, g: (
        _set(o["att"], (0, 1), 0.0),
        _set(o["x_src"], (0, 0, 1), torch.inf),
    ),
    "inf cotangent": lambda o, g: _set(g, (5, 0, 3), torch.inf),
    "NaN cotangent": lambda o, g: _set(g, (5, 1, 3), torch.nan),
}


@pytest.mark.parametrize("blocks", [1, 1 << 20], ids=["split", "whole"])
@pytest.mark.parametrize("slope", [0.2, 0.0, 2.0])
@pytest.mark.parametrize("name", INJECTIONS)
def test_infinities_and_nan_go_where_stock_puts_them(name, slope, blocks, monkeypatch):
    monkeypatch.setattr(cpu_call, "BLOCK_WORK", blocks)
    graph = skewed_graph()
    operands = gatv2_operands(graph, 2, 20, torch.float64)
    grad_out = cotangent(graph, operands)
    INJECTIONS[name](operands, grad_out)
    scalars = {"negative_slope": slope}
    expected = reference(graph, operands, scalars, grad_out)
    assert not all(tensor.isfinite().all() for tensor in expected.values())
    assert_close(run(graph, operands, scalars, grad_out), expected, 1e-11)
    single = {key: tensor.float() for key, tensor in operands.items()}
    expected = reference(graph, single, scalars, grad_out.float())
    assert_close(run(graph, single, scalars, grad_out.float()), expected, 2e-5)


def test_row_of_only_minus_infinite_logits_is_nan(many_blocks):
    edges = torch.stack([torch.arange(200), torch.arange(200) // 100])
    graph = Graph.from_edge_index(edges, 200, 3)
    operands = gatv2_operands(graph, 1, 4)
    operands["att"].fill_(1.0)
    operands["x_src"][:100, 0, 2] = -torch.inf
    out, *_ = cpu.softmax_forward(GATV2, graph, operands, SLOPE)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()
    assert (out[2] == 0).all()
    assert_close({"out": out}, {"out": reference(graph, operands)["out"]}, 1e-6)


def test_chunk_of_only_minus_infinite_logits_is_skipped(many_blocks):
    edges = torch.stack([torch.arange(200), torch.zeros(200, dtype=torch.long)])
    graph = Graph.from_edge_index(edges, 200, 1)
    operands = gatv2_operands(graph, 1, 4)
    operands["att"].fill_(1.0)
    operands["x_src"][40:150, 0, 2] = -torch.inf
    out, lse, _ = cpu.softmax_forward(GATV2, graph, operands, SLOPE)
    expected = reference(graph, operands)["out"]
    assert expected[0, 0, 2].isnan()
    assert expected[0, 0, [0, 1, 3]].isfinite().all()
    assert lse.isfinite().all()
    assert_close({"out": out}, {"out": expected}, 1e-6)


def test_64_bit_offsets():
    graph = skewed_graph()
    operands = gatv2_operands(graph, 2, 8)
    wide = with_64_bit_offsets(graph)
    expected = run(graph, operands)
    got = run(wide, operands)
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_operands_that_are_not_contiguous():
    graph = skewed_graph()
    operands = gatv2_operands(graph, 2, 12)
    grad_out = torch.tensor(0.7).expand(graph.num_dst, 2, 12)
    assert grad_out.stride() == (0, 0, 0)
    strided = {
        "x_src": operands["x_src"].permute(2, 1, 0).contiguous().permute(2, 1, 0),
        "x_dst": torch.stack([operands["x_dst"]] * 2, -1)[..., 1],
        "att": operands["att"].t().contiguous().t(),
    }
    assert not any(tensor.is_contiguous() for tensor in strided.values())
    expected = run(graph, operands, grad_out=grad_out.contiguous())
    got = run(graph, strided, grad_out=grad_out)
    assert all(torch.equal(got[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("needs", "kernels"),
    [
        (set(), set()),
        ({"x_src"}, {"stats", "backward_src"}),
        ({"x_dst"}, {"stats", "backward_dst"}),
        ({"att"}, {"stats", "backward_dst"}),
        ({"x_src", "att"}, {"stats", "backward_dst", "backward_src"}),
    ],
)
def test_only_needed_gradients_are_computed(monkeypatch, needs, kernels):
    graph = skewed_graph()
    operands = gatv2_operands(graph, 2, 16)
    expected = run(graph, operands)
    launched = []
    monkeypatch.setattr(
        cpu_call, "count_launch", lambda target, name: launched.append((target, name))
    )
    got = run(graph, operands, needs=frozenset(needs))
    assert set(got) == needs | {"out"}
    assert all(torch.equal(got[name], expected[name]) for name in got)
    assert set(launched) == {("numba", name) for name in kernels | {"forward"}}


@pytest.mark.parametrize("needed", ["x_src", "x_dst", "att"])
def test_one_gradient_with_split_rows(many_blocks, needed):
    graph = skewed_graph()
    operands = gatv2_operands(graph, 2, 16)
    got = run(graph, operands, needs=frozenset({needed}))
    assert torch.equal(got[needed], run(graph, operands)[needed])


def test_merges_are_launched_only_for_split_rows(monkeypatch):
    graph = skewed_graph()
    operands = gatv2_operands(graph, 2, 16)
    launched = []
    monkeypatch.setattr(cpu_call, "count_launch", lambda target, name: launched.append(name))
    monkeypatch.setattr(cpu_call, "BLOCK_WORK", 1)
    cpu.softmax_forward(GATV2, graph, operands, SLOPE)
    assert launched == ["forward", "merge_forward"]


def test_runs_are_bit_identical_for_any_number_of_threads(many_blocks):
    graph = skewed_graph(edges=5000)
    operands = gatv2_operands(graph, 2, 33)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 2, 4):
            torch.set_num_threads(threads)
            results.append(run(graph, operands))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(result[name], results[0][name]) for name in result)


def test_gradcheck():
    graph = skewed_graph(12, 10, 40)
    operands = gatv2_operands(graph, 2, 3, torch.float64)

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            named = dict(zip(operands, tensors, strict=True))
            out, lse, _ = cpu.softmax_forward(GATV2, graph, named, SLOPE)
            ctx.save_for_backward(*tensors, out, lse)
            return out

        @staticmethod
        def backward(ctx, grad_out):
            *tensors, out, lse = ctx.saved_tensors
            named = dict(zip(operands, tensors, strict=True))
            grads = cpu.softmax_backward(
                GATV2, graph, named, SLOPE, Saved(out, lse), Cotangents(grad_out), frozenset(named)
            )
            return tuple(grads[name] for name in named)

    leaves = [tensor.requires_grad_() for tensor in operands.values()]
    assert torch.autograd.gradcheck(Attention.apply, leaves, eps=1e-6, atol=1e-6)


def test_nothing_edge_wise_is_allocated():
    graph = skewed_graph(200, 150, 40_000)
    _ = graph.by_src
    operands = gatv2_operands(graph, 4, 16)
    with LargestTensor() as largest:
        run(graph, operands)
    assert 0 < largest.size < graph.num_edges * 4 * 4  # one [E, H] tensor


def test_mixed_dtypes_are_rejected():
    graph = skewed_graph()
    operands = gatv2_operands(graph, 1, 4)
    operands["att"] = operands["att"].double()
    with pytest.raises(InvalidArgument, match="att: mixed dtypes"):
        cpu.softmax_forward(GATV2, graph, operands, SLOPE)


def test_unknown_needs_are_rejected():
    graph = skewed_graph()
    operands = gatv2_operands(graph, 1, 4)
    with pytest.raises(InvalidArgument, match="needs: unknown operands"):
        run(graph, operands, needs=frozenset({"edge"}))
