"""Every constructor and forward argument of ``GATv2Conv``: output and all gradients as stock."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gnn_backend

pytest.importorskip("dgl", reason="DGL is not installed")
import dgl
from dgl.nn.pytorch import GATv2Conv

from tests.adapters.dgl.helpers import KINDS, fused, make_graph, random_number_after
from tests.adapters.pyg.helpers import assert_equal, gradients, normal, pairwise

WIDTH = 6
CHOICES: dict[str, list[Any]] = {
    "graph": list(KINDS),
    "idtype": [torch.int64, torch.int32],
    "feat": ["tensor", "pair"],
    "in_feats": ["int", "pair", "unequal"],
    "out_feats": [1, 4, 7],
    "num_heads": [1, 3],
    "feat_drop": [0.0, 0.5],
    "attn_drop": [0.0, 0.6],
    "negative_slope": [0.2, 0.0, 1.5],
    "residual": [False, True, "identity"],
    "activation": [None, torch.tanh, torch.nn.ELU()],
    "allow_zero_in_degree": [True, False],
    "bias": [True, False],
    "share_weights": [False, True],
}


def allowed(c: dict[str, Any]) -> bool:
    if c["in_feats"] == "unequal" and c["feat"] == "tensor":
        return False
    if c["graph"] == "slice" and c["feat"] == "tensor":
        return False
    return c["num_heads"] * c["out_feats"] > 1  # see test_single_number_a_node


def make(c: dict[str, Any]) -> tuple[GATv2Conv, Any, Any]:
    """The layer, graph and features of a combination."""
    graph = make_graph(c["graph"], covered=not c["allow_zero_in_degree"], idtype=c["idtype"])
    width = c["out_feats"] * c["num_heads"] if c["residual"] == "identity" else WIDTH
    wide = width + 2 if c["in_feats"] == "unequal" else width
    options = {n: c[n] for n in CHOICES if n not in ("graph", "idtype", "feat", "in_feats")}
    options["residual"] = bool(c["residual"])
    torch.manual_seed(1)
    conv = GATv2Conv(width if c["in_feats"] == "int" else (wide, width), **options)
    conv.attn_drop.eval()  # active attention dropout has no fused path
    feat = normal(graph.num_src_nodes(), wide)
    if c["feat"] == "pair":
        feat = (feat, normal(graph.num_dst_nodes(), width, seed=1))
    return conv, graph, feat


COMBINATIONS = pairwise(CHOICES, allowed)


def name(combination: dict[str, Any]) -> str:
    """The same in every process: a function's own text holds its address."""
    texts = (getattr(value, "__name__", str(value)) for value in combination.values())
    return "-".join(text.replace("torch.", "") for text in texts)


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name)
def test_equals_stock(combination: dict[str, Any]) -> None:
    conv, graph, feat = make(combination)
    want, random = gradients(conv, graph, feat), random_number_after(conv, graph, feat)
    with fused(calls=2):
        assert_equal(gradients(conv, graph, feat), want)
        assert torch.equal(random_number_after(conv, graph, feat), random)


def test_many_combinations() -> None:
    assert len(COMBINATIONS) >= 20


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
