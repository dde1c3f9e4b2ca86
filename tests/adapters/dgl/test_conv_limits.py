"""``GATv2Conv`` where its arguments are at their limits: output and all gradients as stock."""

from __future__ import annotations

import pytest
import torch

import gnn_backend

pytest.importorskip("dgl", reason="DGL is not installed")
import dgl
from dgl.nn.pytorch import GATv2Conv

from tests.adapters.dgl.helpers import fused, make_graph
from tests.adapters.pyg.helpers import assert_equal, gradients, normal

WIDTH = 6


@pytest.mark.parametrize("negative_slope", [0.2, 0.0])
def test_single_number_a_node(negative_slope: float) -> None:
    """Terms of the destination's gradient cancel nearly wholly here, so float64 is the judge."""
    conv = GATv2Conv(6, 1, 1, negative_slope=negative_slope, allow_zero_in_degree=True)
    exact = GATv2Conv(6, 1, 1, negative_slope=negative_slope, allow_zero_in_degree=True).double()
    exact.load_state_dict(conv.state_dict())
    graph, feat = make_graph("homogeneous"), normal(14, 6)
    want, stock = gradients(exact, graph, feat.double()), gradients(conv, graph, feat)
    with fused():
        got = gradients(conv, graph, feat)
    for name, expected in want.items():
        scale = expected.abs().max()
        theirs = (stock[name] - expected).abs().max() / scale
        assert (got[name] - expected).abs().max() / scale <= max(2e-5, 2 * theirs), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["homogeneous", "block"])
def test_dtypes(dtype: torch.dtype, kind: str) -> None:
    conv = GATv2Conv(6, 4, 2, residual=True, allow_zero_in_degree=True).to(dtype)
    graph, feat = make_graph(kind), normal(14, 6, dtype=dtype)
    want = gradients(conv, graph, feat)
    with fused():
        assert_equal(gradients(conv, graph, feat), want)


@pytest.mark.parametrize("shape", [(14, 1, 6), (1, 14, 6)])
def test_further_dimensions_that_stock_takes(shape: tuple[int, ...]) -> None:
    conv = GATv2Conv(6, 4, 2, allow_zero_in_degree=True)
    graph, feat = make_graph("homogeneous"), normal(*shape)
    want = gradients(conv, graph, feat)
    with fused():
        assert_equal(gradients(conv, graph, feat), want)


@pytest.mark.parametrize(("num_src", "num_dst"), [(5, 3), (0, 3), (5, 0), (0, 0)])
def test_no_edges(num_src: int, num_dst: int) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    graph = dgl.heterograph({("a", "r", "b"): (none, none)}, {"a": num_src, "b": num_dst})
    conv = GATv2Conv((6, 5), 4, 2, residual=True, allow_zero_in_degree=True)
    feat = (normal(num_src, 6), normal(num_dst, 5))
    try:
        want = gradients(conv, graph, feat)
    except Exception as stock_error:
        with gnn_backend.enabled(hosts="dgl"), pytest.raises(type(stock_error)):
            gradients(conv, graph, feat)
        return
    with gnn_backend.enabled(mode="strict", hosts="dgl"):
        assert_equal(gradients(conv, graph, feat), want)


def test_only_what_wants_a_gradient_gets_one() -> None:
    conv = GATv2Conv(6, 4, 2, allow_zero_in_degree=True).requires_grad_(False)
    conv.attn.requires_grad_()
    graph, feat = make_graph("homogeneous"), normal(14, 6)
    conv(graph, feat).sum().backward()
    want, conv.attn.grad = conv.attn.grad, None
    with fused() as profile:
        conv(graph, feat).sum().backward()
    assert_equal({"attn": conv.attn.grad}, {"attn": want})
    assert conv.fc_src.weight.grad is None
    assert not any("src" in kernel for _, kernel in profile.launches)


def test_gradient_of_a_gradient() -> None:
    conv = GATv2Conv(3, 2, 2, allow_zero_in_degree=True).double()
    graph, feat = make_graph("homogeneous"), normal(14, 3, dtype=torch.float64).requires_grad_()
    with gnn_backend.enabled(mode="strict", hosts="dgl"):
        assert torch.autograd.gradgradcheck(lambda x: conv(graph, x), (feat,))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_bad_numbers_stay_in_their_rows(number: float) -> None:
    conv = GATv2Conv(6, 4, 2, allow_zero_in_degree=True)
    graph, feat = make_graph("homogeneous"), normal(14, 6)
    feat[2, 1] = number
    want = conv(graph, feat)
    with fused():
        got = conv(graph, feat)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.allclose(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)
