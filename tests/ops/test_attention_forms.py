"""Projected attention of every form but GATv2's, which has a file of its own, against its parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.ops.attention_forms import FORMS, scores
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.ops.projected_attention import Projection, projected_attention
from gnn_backend.ops.softmax_attention import attention_twin, softmax_attention
from gnn_backend.profile import profile
from tests.ops.support import edges_with_hubs
from tests.ops.test_projected_attention import (
    DIM,
    FEATURES,
    HEADS,
    TOLERANCE,
    Tensors,
    assert_close,
    differentiate,
)

pytestmark = pytest.mark.sampled(5)

SCALARS = {
    "gat": {"negative_slope": 0.2},
    "dot": {"scale": 0.7},
    "agnn": {},
    "supergat": {"negative_slope": 0.2, "scale": 0.0},
    "supergat scaled": {"negative_slope": 0.2, "scale": 0.7},
}
#: Form, and where destinations' features and projection come from.
CASES = [
    *itertools.product(("gat", "dot"), ("own", "first-rows", "shared")),
    ("agnn", "shared"),
    ("supergat", "own"),
    ("supergat", "shared"),
    ("supergat scaled", "shared"),
]


def inputs(form: str, ends: str, dtype: torch.dtype = torch.float32) -> tuple[Graph, Tensors]:
    edge_index, num_src, num_dst = edges_with_hubs()
    width = HEADS * DIM
    shapes: dict[str, tuple[int, ...]] = {"h_src": (num_src, FEATURES)}
    if form != "agnn":
        shapes |= {"w_src": (width, FEATURES), "b_src": (width,), "bias": (HEADS, DIM)}
        shapes["residual"] = (num_dst, HEADS, DIM)
    if ends != "shared":
        shapes |= {"w_dst": (width, FEATURES), "b_dst": (width,)}
        if ends == "own":
            shapes["h_dst"] = (num_dst, FEATURES)
    if form in ("gat", "supergat"):
        shapes |= {"att_src": (1, HEADS, DIM), "att_dst": (HEADS, DIM)}
    if form == "agnn":
        shapes["beta"] = (1,)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: (torch.randn(*shape, generator=generator, dtype=torch.float64) / 2).to(dtype)
        for name, shape in shapes.items()
    }
    graph = Graph.from_edge_index(edge_index, num_src, num_dst)
    return graph, {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def params(t: Tensors) -> tuple[Tensor, ...]:
    return tuple(t[name] for name in ("att_src", "att_dst", "beta") if name in t)


def fused(form: str, graph: Graph, t: Tensors, **options: Any) -> Tensor:
    return projected_attention(
        FORMS[form],
        graph,
        t["h_src"],
        Projection(t["w_src"], t["b_src"]) if "w_src" in t else None,
        params(t),
        SCALARS[form],
        num_heads=HEADS if form != "agnn" else 1,
        h_dst=t.get("h_dst"),
        dst=Projection(t["w_dst"], t["b_dst"]) if "w_dst" in t else None,
        residual=t.get("residual"),
        bias=t.get("bias"),
        **options,
    )


def parts(
    form: str, graph: Graph, t: Tensors, attend: Callable[..., Any] = softmax_attention
) -> Tensor:
    """The same, one operation after the other."""
    if form == "agnn":
        x_src = t["h_src"].unsqueeze(1)
        key = F.normalize(x_src, dim=-1)
        query = t["beta"] * key[: graph.num_dst]
        operands = _dot(query, key, x_src)  # of which the form's functor computes the same
        return _first(attend(FUNCTORS["dot"], graph, operands, {"scale": 1.0}))
    x_src = F.linear(t["h_src"], t["w_src"], t["b_src"]).view(-1, HEADS, DIM)
    x_dst = x_src[: graph.num_dst]
    if "w_dst" in t:
        h_dst = t.get("h_dst", t["h_src"][: graph.num_dst])
        x_dst = F.linear(h_dst, t["w_dst"], t["b_dst"]).view(-1, HEADS, DIM)
    operands = _dot(x_dst, x_src, x_src)
    if form == "gat":
        el, er = ((x * t[a]).sum(-1) for x, a in ((x_src, "att_src"), (x_dst, "att_dst")))
        operands = {"x_src": x_src, "el": el, "er": er}
    if form.startswith("supergat"):
        zeros = [x.new_zeros(x.shape[:2]) for x in (x_src, x_dst)]
        scored = [(x * t[a]).sum(-1) for x, a in ((x_src, "att_src"), (x_dst, "att_dst")) if a in t]
        el, er = scored or zeros
        operands = {"x_src": x_src, "el": el, "x_dst": x_dst, "er": er}
    out = _first(attend(FORMS[form].functor, graph, operands, SCALARS[form]))
    return out + t["residual"] + t["bias"]


def _dot(query: Tensor, key: Tensor, value: Tensor) -> Tensors:
    return {"q_dst": query, "k_src": key, "v_src": value}


def _first(found: Any) -> Tensor:
    return found[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("form", "ends"), CASES)
@pytest.mark.sampled(15)
def test_equals_its_parts(form: str, ends: str, target: str) -> None:
    graph, t = inputs(form, ends)
    with profile() as record:
        got = differentiate(fused(form, graph, t), t)
    assert record.launches
    assert_close(got, differentiate(parts(form, graph, t), t))


@pytest.mark.parametrize(("form", "ends"), CASES)
def test_only_what_is_needed(form: str, ends: str) -> None:
    """Any one input, and any two, may be all that wants a gradient."""
    graph, t = inputs(form, ends)
    want = differentiate(parts(form, graph, t), t)
    for needs in [*itertools.combinations(t, 1), *itertools.combinations(t, 2)][::3]:
        for name, tensor in t.items():
            tensor.requires_grad_(name in needs)
        got = differentiate(fused(form, graph, t), t)
        assert_close(got, {n: want[n] for n in ("out", *t) if n in {"out", *needs}})


@pytest.mark.parametrize("form", ["gat", "dot", "agnn", "supergat"])
def test_square_graphs(form: str) -> None:
    """As many destinations as sources, where both ends' gradients meet in every row."""
    edge_index = edges_with_hubs()[0]
    graph = Graph.from_edge_index(edge_index, 37, 37)
    _, t = inputs(form, "shared")
    t = {n: tensor for n, tensor in t.items() if n != "residual"}
    t["h_src"] = torch.randn(37, FEATURES, generator=torch.manual_seed(0)).requires_grad_()
    t["residual"] = torch.zeros(())
    if form != "agnn":
        t["residual"] = torch.randn(37, HEADS, DIM).requires_grad_()
    t = {n: tensor for n, tensor in t.items() if tensor.requires_grad}
    assert_close(differentiate(fused(form, graph, t), t), differentiate(parts(form, graph, t), t))


@pytest.mark.parametrize(("form", "ends"), CASES)
@pytest.mark.thorough
def test_gradcheck(form: str, ends: str) -> None:
    graph, t = inputs(form, ends, torch.float64)

    def call(*values: Tensor) -> Tensor:
        return fused(form, graph, dict(zip(t, values, strict=True)))

    assert torch.autograd.gradcheck(call, list(t.values()), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, list(t.values()), fast_mode=True)


@pytest.mark.parametrize("form", ["gat", "dot", "agnn"])
def test_sixteen_bits(form: str) -> None:
    """No further from float64 than the parts are, or within the tolerance of the dtype."""
    graph, t = inputs(form, "shared", torch.bfloat16)
    wide = {n: tensor.detach().double().requires_grad_() for n, tensor in t.items()}
    want = differentiate(parts(form, graph, wide), wide)
    apart = differentiate(parts(form, graph, t), t)
    got = differentiate(fused(form, graph, t), t)
    assert got.keys() == want.keys()
    for name, exact in want.items():
        error, other = ((found[name].double() - exact).abs().max() for found in (got, apart))
        assert error <= max(1.5 * other, TOLERANCE[torch.bfloat16] * exact.abs().max()), name


@pytest.mark.thorough
def test_rows_of_length_zero() -> None:
    """A row that is 0 has no direction; stock divides it by a constant."""
    graph, t = inputs("agnn", "shared", torch.float64)
    with torch.no_grad():
        t["h_src"][::3] = 0.0
    got = differentiate(fused("agnn", graph, t), t)
    twin: Callable[..., Any] = attention_twin
    assert_close(got, differentiate(parts("agnn", graph, t, twin), t), torch.float64)


def test_scores_of_many_rows() -> None:
    """Taken a few rows at a time, they are the same numbers."""
    table, att = torch.randn(5000, 2, 64), torch.randn(1, 2, 64)
    assert torch.equal(scores(table, att), (table * att).sum(-1))


def test_dropout_is_the_operators() -> None:
    graph, t = inputs("dot", "shared")
    t = {n: t[n] for n in ("h_src", "w_src", "b_src")}
    torch.manual_seed(3)
    dropped = fused("dot", graph, t, dropout_p=0.5)
    torch.manual_seed(3)
    assert torch.equal(dropped, fused("dot", graph, t, dropout_p=0.5))
    assert not torch.equal(dropped, fused("dot", graph, t))


@pytest.mark.parametrize(
    ("form", "given", "word"),
    [
        ("gat", ("att_src",), "params"),
        ("dot", ("att_src",), "params"),
        ("agnn", ("att_src",), "att"),
    ],
)
def test_other_parameters_are_refused(form: str, given: tuple[str, ...], word: str) -> None:
    graph, t = inputs("gat", "shared")
    src = None if form == "agnn" else Projection(t["w_src"])
    with pytest.raises(InvalidArgument, match=word):
        projected_attention(
            FORMS[form], graph, t["h_src"], src, tuple(t[n] for n in given), SCALARS[form],
            num_heads=HEADS if src else 1,
        )  # fmt: skip


def test_heads_that_do_not_divide_the_features_are_refused() -> None:
    graph, t = inputs("dot", "shared")
    with pytest.raises(InvalidArgument, match="num_heads"):
        projected_attention(
            FORMS["dot"], graph, t["h_src"], Projection(t["w_src"]), (), SCALARS["dot"], num_heads=4
        )
