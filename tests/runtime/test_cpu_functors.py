"""The attention family on the CPU engine, against plain torch in float64: all that is returned."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.runtime import cpu, cpu_call, cpu_module
from tests.runtime.cpu_cases import LargestTensor, assert_close, skewed_graph
from tests.runtime.cpu_family import (
    SCALARS,
    Call,
    ends,
    engine_results,
    make_call,
    twin_results,
)

pytestmark = pytest.mark.sampled(13)

ALL = {
    "gatv2": ("rows", "attention"),
    "gat": ("terms", "shared", "summed", "attention"),
    "dot": ("terms", "shared", "asked", "summed", "attention"),
    "supergat": ("attention",),
    "scaled_dot": ("attention",),
}


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    """Cut even small graphs into many blocks, so that rows are split."""
    monkeypatch.setattr(cpu_call, "BLOCK_WORK", 1)


def everything(name: str, heads: int = 2, width: int = 7, features: int = 5) -> Call:
    return make_call(name, skewed_graph(), heads, width, features, ALL[name], dropout_p=0.3)


def by_head(call: Call) -> Call:
    """The same with features of each head's own."""
    shared = call.operands["edge_features"]
    heads = torch.linspace(0.5, 2, call.cotangents["out"].shape[1], dtype=shared.dtype)
    operands = call.operands | {"edge_features": shared[:, None] * heads[:, None]}
    return call._replace(operands=operands)


def check(call: Call, tolerance: float = 1e-11) -> dict[str, torch.Tensor]:
    results = engine_results(call)
    assert_close(results, twin_results(call), tolerance)
    return results


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width"),
    [("gat", 64), ("gat", 71), ("dot", 33), ("dot", 40), ("supergat", 64), ("scaled_dot", 33)],
)
@pytest.mark.thorough
def test_nodes_alone(name, width):
    call = make_call(name, skewed_graph(), 2, width)
    check(call.to(torch.float32), 1e-5)


def test_16_bit_operands_are_widened_and_rounded_once():
    call = make_call("gat", skewed_graph(), 2, 64).to(torch.bfloat16)
    got, wide = engine_results(call), engine_results(call.to(torch.float32))
    assert all(tensor.dtype == torch.bfloat16 for tensor in got.values())
    assert torch.equal(got["output"], wide["output"].bfloat16())
    assert_close(got, twin_results(call), 3e-2)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 7, 5), (2, 3, 15)], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_everything_at_once(name, sizes):
    check(everything(name, *sizes))


@pytest.mark.parametrize("name", ["gat", "dot"])
@pytest.mark.thorough
def test_features_of_each_head(name):
    check(by_head(everything(name)))


@pytest.mark.parametrize("needed", ["v_src", "edge_features"])
@pytest.mark.thorough
def test_needs_decide_what_is_computed(needed):
    call = everything("dot")
    got, expected = engine_results(call, needs=frozenset({needed})), engine_results(call)
    assert set(got) == {"output", "output_edge", "attention", needed}
    assert all(torch.equal(got[name], expected[name]) for name in got)


@pytest.mark.thorough
def test_edges_in_the_order_of_destinations():
    by_dst = skewed_graph().by_dst
    graph = Graph.from_csr(by_dst.indptr, by_dst.indices, num_src=60)
    assert graph.by_dst.edge_ids is None
    assert graph.by_src.edge_ids is not None
    check(everything("gat")._replace(graph=graph))


@pytest.mark.parametrize("name", ALL)
def test_hub_duplicates_and_loops(name):
    hub = torch.stack([torch.arange(3000) % 70, torch.zeros(3000, dtype=torch.long)])
    edges = torch.cat([hub, hub.flip(0)[:, :900], torch.tensor([[5, 5, 7], [5, 5, 7]])], 1)
    order = torch.randperm(edges.shape[1], generator=torch.Generator().manual_seed(0))
    graph = Graph.from_edge_index(edges[:, order], 75, 72)
    check(make_call(name, graph, 2, 7, 5, ALL[name], dropout_p=0.3))


def test_masked_edges_have_no_weight():
    call = everything("dot")
    bias = call.operands["edge_bias"]
    bias[torch.rand(bias.shape, generator=torch.Generator().manual_seed(1)) < 0.4] = -torch.inf
    dst = ends(call.graph)[1]
    bias[dst == dst.mode().values] = 0.0  # a row that is not masked at all
    masked = dst[0]
    bias[dst == masked] = -torch.inf
    expected = twin_results(call)
    assert expected["output"][masked].isnan().all(), "a row of masked edges alone is NaN in torch"
    results = engine_results(call)
    # The gradients of a row of NaN spread to all that it reads, in torch as here.
    assert_close(results, expected, 1e-11)
    assert (results["attention"][bias.isinf() & ~results["attention"].isnan()] == 0).all()


def test_large_logits():
    call = everything("dot")
    call.operands["q_dst"] *= 1e4
    check(call, 1e-7)  # gradients of near one-hot weights cancel


@pytest.mark.thorough
def test_all_weights_dropped():
    call = everything("gat")
    assert call.dropout is not None
    call = call._replace(dropout=call.dropout._replace(p=1.0))
    results = check(call)
    assert (results["output"] == 0).all()


def test_calls_of_one_seed_draw_anew():
    call = everything("gat")
    assert call.dropout is not None
    later = call._replace(dropout=call.dropout._replace(offset=call.dropout.offset + 1))
    dropped, others = (engine_results(c)["attention"] == 0 for c in (call, later))
    assert 0.25 < dropped.double().mean() < 0.35
    assert 0.3 < (dropped != others).double().mean() < 0.54  # 2 * 0.3 * 0.7 is expected


@pytest.mark.parametrize("name", ALL)
def test_bits_do_not_depend_on_threads(name):
    call = make_call(name, skewed_graph(edges=4000), 2, 7, 5, ALL[name], dropout_p=0.3)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(engine_results(call))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(result[name], results[0][name]) for name in result)


@pytest.mark.parametrize("name", ALL)
def test_no_edges(name):
    graph = Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.long), 5, 4)
    call = make_call(name, graph, 2, 3, 2, ALL[name], dropout_p=0.3)
    results = engine_results(call)
    assert results["attention"].shape == (0, 2)
    for key, tensor in call.operands.items():
        assert torch.equal(results[key], torch.zeros_like(tensor))
    assert (results["output"] == 0).all()


@pytest.mark.thorough
def test_nothing_edge_wise_is_allocated_for_dropout():
    graph = skewed_graph(200, 150, 40_000)
    _ = graph.by_src.edge_ids
    call = make_call("gat", graph, 4, 64, dropout_p=0.3).to(torch.float32)
    with LargestTensor() as largest:
        got = engine_results(call)
    assert 0 < largest.size < graph.num_edges * 4 * 4  # one [E, H] tensor
    assert_close(got, twin_results(call), 1e-5)


def test_operands_of_different_types_are_rejected():
    call = everything("gat")
    operands = call.operands | {"edge_logit": call.operands["edge_logit"].float()}
    with pytest.raises(InvalidArgument, match="edge_logit: mixed dtypes"):
        engine_results(call._replace(operands=operands))


def test_features_to_sum_are_missing():
    call = make_call("gat", skewed_graph(), 2, 7)
    with pytest.raises(InvalidArgument, match="edge_features: missing"):
        cpu.softmax_forward(
            FUNCTORS["gat"], call.graph, call.operands, SCALARS["gat"], aggregate=True
        )


def test_unknown_functor_is_named():
    with pytest.raises(InvalidArgument, match="functor: no Numba source; got nothing_like_it"):
        cpu_module.functor_path("nothing_like_it")
