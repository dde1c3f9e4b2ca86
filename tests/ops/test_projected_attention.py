"""Projections, attention and the combination of heads as one autograd node."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.ops import projected_attention as module
from gnn_backend.ops.attention import softmax_attention
from gnn_backend.ops.attention_forms import FORMS
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.ops.projected_attention import Projection, projected_attention
from gnn_backend.profile import profile
from tests.ops.support import edges_with_hubs

pytestmark = pytest.mark.sampled(5)

HEADS, DIM, FEATURES = 2, 3, 5
SLOPE = {"negative_slope": 0.2}
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 5e-2}
#: Where destinations' features and projection come from.
ENDS = ("own", "first-rows", "shared")
Tensors = dict[str, Tensor]


def inputs(ends: str, heads: str, dtype: torch.dtype = torch.float32) -> tuple[Graph, Tensors]:
    edge_index, num_src, num_dst = edges_with_hubs()
    width = HEADS * DIM
    columns = {"keep": (HEADS, DIM), "concat": (width,), "mean": (DIM,)}[heads]
    shapes: dict[str, tuple[int, ...]] = {
        "h_src": (num_src, FEATURES),
        "w_src": (width, FEATURES),
        "b_src": (width,),
        "att": (1, HEADS, DIM),
        "residual": (num_dst, *columns),
        "bias": columns,
    }
    if ends != "shared":
        features = FEATURES + 2 if ends == "own" else FEATURES
        shapes |= {"w_dst": (width, features), "b_dst": (width,)}
        if ends == "own":
            shapes["h_dst"] = (num_dst, features)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: (torch.randn(*shape, generator=generator, dtype=torch.float64) / 2).to(dtype)
        for name, shape in shapes.items()
    }
    graph = Graph.from_edge_index(edge_index, num_src, num_dst)
    return graph, {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def fused(graph: Graph, t: Tensors, heads: str) -> Tensor:
    return projected_attention(
        FORMS["gatv2"],
        graph,
        t["h_src"],
        Projection(t["w_src"], t.get("b_src")),
        (t["att"],),
        SLOPE,
        num_heads=HEADS,
        h_dst=t.get("h_dst"),
        dst=Projection(t["w_dst"], t.get("b_dst")) if "w_dst" in t else None,
        heads=heads,
        residual=t.get("residual"),
        bias=t.get("bias"),
    )


def parts(
    graph: Graph, t: Tensors, heads: str, attend: Callable[..., Any] = softmax_attention
) -> Tensor:
    """The same, one operation after the other."""
    x_src = F.linear(t["h_src"], t["w_src"], t.get("b_src")).view(-1, HEADS, DIM)
    x_dst = x_src[: graph.num_dst]
    if "w_dst" in t:
        h_dst = t.get("h_dst", t["h_src"][: graph.num_dst])
        x_dst = F.linear(h_dst, t["w_dst"], t.get("b_dst")).view(-1, HEADS, DIM)
    operands = {"x_src": x_src, "x_dst": x_dst, "att": t["att"].view(HEADS, DIM)}
    out = attend(FUNCTORS["gatv2"], graph, operands, SLOPE)
    out = out[0] if isinstance(out, tuple) else out
    out = {"keep": out, "concat": out.reshape(len(out), -1), "mean": out.mean(1)}[heads]
    for added in ("residual", "bias"):
        out = out + t[added] if added in t else out
    return out


def differentiate(out: Tensor, t: Tensors, **options: bool) -> Tensors:
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    names = [n for n, tensor in t.items() if tensor.requires_grad]
    found = torch.autograd.grad(out, [t[n] for n in names], cotangent, **options)
    return {"out": out, **dict(zip(names, found, strict=True))}


def assert_close(got: Tensors, want: Tensors, dtype: torch.dtype = torch.float32) -> None:
    assert got.keys() == want.keys()
    for name, expected in want.items():
        value = got[name]
        assert (value.shape, value.dtype) == (expected.shape, dtype), name
        error = (value.double() - expected.double()).abs().max()
        assert error <= TOLERANCE[dtype] * expected.abs().max(), f"{name}: off by {error:.3g}"


@pytest.mark.parametrize("heads", ["keep", "concat", "mean"])
@pytest.mark.parametrize("ends", ENDS)
def test_equals_its_parts(ends: str, heads: str, target: str) -> None:
    graph, t = inputs(ends, heads)
    with profile() as record:
        got = differentiate(fused(graph, t, heads), t)
    assert record.launches
    assert_close(got, differentiate(parts(graph, t, heads), t))


@pytest.mark.parametrize("absent", [("b_src",), ("b_dst",), ("bias",), ("residual", "bias")])
def test_without_biases(absent: tuple[str, ...]) -> None:
    graph, t = inputs("own", "concat")
    t = {n: tensor for n, tensor in t.items() if n not in absent}
    got = differentiate(fused(graph, t, "concat"), t)
    assert_close(got, differentiate(parts(graph, t, "concat"), t))


@pytest.mark.parametrize("ends", ENDS)
def test_only_what_is_needed(ends: str) -> None:
    """Any one input, and any two, may be all that wants a gradient."""
    graph, t = inputs(ends, "concat")
    want = differentiate(parts(graph, t, "concat"), t)
    for needs in [*itertools.combinations(t, 1), *itertools.combinations(t, 2)]:
        for name, tensor in t.items():
            tensor.requires_grad_(name in needs)
        out = fused(graph, t, "concat")
        assert_close(
            differentiate(out, t), {n: want[n] for n in ("out", *t) if n in {"out", *needs}}
        )


def test_one_autograd_node() -> None:
    graph, t = inputs("own", "concat")
    node = fused(graph, t, "concat").grad_fn
    assert {f.name() for f, _ in node.next_functions if f} == {"torch::autograd::AccumulateGrad"}


def test_sixteen_bits() -> None:
    graph, t = inputs("own", "concat", torch.bfloat16)
    wide = {n: tensor.detach().double().requires_grad_() for n, tensor in t.items()}
    got = differentiate(fused(graph, t, "concat"), t)
    assert_close(got, differentiate(parts(graph, wide, "concat"), wide), torch.bfloat16)


@pytest.mark.parametrize("ends", ENDS)
def test_gradcheck(ends: str) -> None:
    graph, t = inputs(ends, "mean", torch.float64)

    def call(*values: Tensor) -> Tensor:
        return fused(graph, dict(zip(t, values, strict=True)), "mean")

    assert torch.autograd.gradcheck(call, list(t.values()), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, list(t.values()), fast_mode=True)


def test_second_derivatives_of_tensors_used_twice() -> None:
    """The same features and the same weights at both ends, as layers with shared weights do."""
    edge_index = edges_with_hubs()[0]
    graph = Graph.from_edge_index(edge_index, 37, 37)
    _, t = inputs("shared", "concat", torch.float64)
    t = {n: t[n] for n in ("h_src", "w_src", "att")}

    def penalty(function: Callable[..., Tensor]) -> Tensors:
        both = {**t, "h_dst": t["h_src"], "w_dst": t["w_src"]}
        first = torch.autograd.grad(
            function(graph, both, "concat").square().sum(), list(t.values()), create_graph=True
        )
        second = torch.autograd.grad(sum(g.square().sum() for g in first), list(t.values()))
        return dict(zip(t, second, strict=True))

    assert_close(penalty(fused), penalty(parts), torch.float64)


def test_not_recorded_without_grad_mode() -> None:
    graph, t = inputs("own", "concat")
    with torch.no_grad():
        out = fused(graph, t, "concat")
    assert not out.requires_grad
    assert torch.equal(out, fused(graph, t, "concat"))


@pytest.mark.parametrize("heads", ["keep", "concat", "mean"])
def test_result_may_be_changed_in_place(heads: str) -> None:
    graph, t = inputs("own", heads)
    t = {n: tensor for n, tensor in t.items() if n not in ("bias", "residual")}
    got = differentiate(fused(graph, t, heads).mul_(2), t)
    assert_close(got, differentiate(parts(graph, t, heads) * 2, t))


def test_cotangent_of_any_layout() -> None:
    graph, t = inputs("own", "concat")
    plain = torch.autograd.grad(fused(graph, t, "concat").sum(), list(t.values()))
    wanted = torch.ones(HEADS * DIM, graph.num_dst).t()
    given = torch.autograd.grad(fused(graph, t, "concat"), list(t.values()), wanted)
    assert all(torch.equal(a, b) for a, b in zip(plain, given, strict=True))


def test_backward_inside_autocast() -> None:
    graph, t = inputs("first-rows", "concat")
    want = differentiate(fused(graph, t, "concat"), t)
    out = fused(graph, t, "concat")
    with torch.autocast("cpu"):
        assert_close(differentiate(out, t), want)


def test_saved_input_changed_in_place_is_noticed() -> None:
    graph, t = inputs("own", "concat")
    t["h_src"] = t["h_src"] * 1
    out = fused(graph, t, "concat")
    t["h_src"].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_batch_of_cotangents_is_refused() -> None:
    graph, t = inputs("own", "concat")
    out = fused(graph, t, "concat")
    with pytest.raises(RuntimeError, match="a batch of gradients"):
        torch.autograd.grad(out, t["att"], torch.ones(2, *out.shape), is_grads_batched=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("h_src", torch.ones(3, FEATURES)),
        ("h_dst", torch.ones(3, FEATURES + 2)),
        ("w_src", torch.ones(5, FEATURES)),
        ("w_dst", torch.ones(5, FEATURES + 2)),
        ("att", torch.ones(2, HEADS, DIM)),
        ("att", torch.ones(1, HEADS, DIM, dtype=torch.float64)),
        ("bias", torch.ones(1)),
        ("bias", torch.ones(HEADS * DIM, dtype=torch.float16)),
        ("residual", torch.ones(1, HEADS * DIM)),
        ("att", torch.ones(1, HEADS, DIM, device="meta")),
    ],
)
def test_what_does_not_fit_is_refused(name: str, value: Tensor) -> None:
    graph, t = inputs("own", "concat")
    with pytest.raises(InvalidArgument):
        fused(graph, {**t, name: value}, "concat")


def test_autocast_projections_are_refused() -> None:
    """The layers call their modules then; the kernels must not read 16 bits as 32."""
    graph, t = inputs("own", "concat")
    with torch.autocast("cpu"), pytest.raises(InvalidArgument, match="projected to"):
        fused(graph, t, "concat")


def test_backward_keeps_nothing_that_is_only_added() -> None:
    graph, t = inputs("own", "concat")
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda s: kept.append(s) or s, lambda s: s):
        fused(graph, t, "concat")
    addresses = {tensor.data_ptr() for tensor in kept}
    assert t["h_src"].data_ptr() in addresses
    assert not addresses & {t["residual"].data_ptr(), t["bias"].data_ptr()}


class Box:
    """What is saved for backward, in the hands of the test."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@pytest.mark.skipif(
    not hasattr(torch.autograd.function.FunctionCtx, "maybe_clear_saved_tensors")
    and not hasattr(torch._C._FunctionBase, "maybe_clear_saved_tensors"),
    reason="this PyTorch frees saved tensors only after a backward",
)
@pytest.mark.parametrize("retain_graph", [False, True])
def test_saved_tables_are_freed_before_the_projections_gradients(
    retain_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, t = inputs("own", "concat")
    boxes: list[weakref.ref[Box]] = []
    alive: list[int] = []

    def pack(tensor: Tensor) -> Box:
        box = Box(tensor)
        boxes.append(weakref.ref(box))
        return box

    linear_gradients = module._linear_gradients

    def watching(*args: Any) -> Any:
        alive.append(sum(box() is not None for box in boxes))
        return linear_gradients(*args)

    monkeypatch.setattr(module, "_linear_gradients", watching)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        out = fused(graph, t, "concat")
    got = differentiate(out, t, retain_graph=retain_graph)
    assert alive[0] == (len(boxes) if retain_graph else 0)
    if retain_graph:
        assert_close(differentiate(out, t), got)
    with pytest.raises(RuntimeError, match="second time"):
        differentiate(out, t)


def test_destinations_need_features_and_a_projection() -> None:
    graph, t = inputs("own", "concat")
    without = {n: tensor for n, tensor in t.items() if n not in ("w_dst", "b_dst")}
    with pytest.raises(InvalidArgument, match="h_dst"):
        fused(graph, without, "concat")
    more = Graph.from_edge_index(torch.zeros(2, 1, dtype=torch.int64), 37, 40)
    with pytest.raises(InvalidArgument, match="h_dst"):
        fused(more, {n: t[n] for n in ("h_src", "w_src", "att")}, "concat")
