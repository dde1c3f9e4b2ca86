"""Autograd: what is asked for and nothing else, repeated and second derivatives, no leaks."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops.attention import gatv2_attention
from gnn_backend.profile import profile
from tests.ops.support import (
    NAMES,
    Problem,
    as_dtype,
    attention,
    check,
    edges_with_hubs,
    gradients,
    problem,
    reference,
    run,
    same_bits,
    twin,
)

pytestmark = pytest.mark.sampled(5)

#: Traversals that the gradient of each operand needs; the other one must not run.
PASSES = {
    "numba": {"x_src": {"backward_src"}, "x_dst": {"backward_dst"}, "att": {"backward_dst"}},
    "emulator": {
        "x_src": {"backward_src"},
        "x_dst": {"backward_dst"},
        "att": {"backward_dst", "backward_src"},
    },
}
SUBSETS = [s for n in range(4) for s in itertools.combinations(NAMES, n)]


@pytest.mark.parametrize("needs", SUBSETS, ids=lambda s: "+".join(s) or "none")
def test_only_what_is_needed(needs: tuple[str, ...], target: str) -> None:
    p = problem(3, 7)
    for name, tensor in p.operands.items():
        tensor.requires_grad_(name in needs)
    out = attention(p)
    assert out.requires_grad == bool(needs)
    if not needs:
        return
    with profile() as backward:
        out.backward(p.cotangent)
    grads = {n: t.grad for n, t in p.operands.items() if t.grad is not None}
    assert set(grads) == set(needs)
    for tensor in p.operands.values():
        tensor.requires_grad_()
    check(grads, reference(p), torch.float32, needs)
    traversals = {"backward_dst", "backward_src"}
    ran = {t for t in traversals for _, name in backward.launches if name.endswith(t)}
    assert ran == set.union(*(PASSES[target][n] for n in needs))


def test_no_gradient_is_recorded_without_grad_mode(target: str) -> None:
    p = problem(3, 7)
    with torch.no_grad():
        assert not attention(p).requires_grad
    with torch.inference_mode():
        inside = attention(p)
    assert torch.equal(inside.clone(), attention(p))


def test_backward_twice(target: str, splitting: None) -> None:
    p = problem(3, 7)
    out = attention(p)
    inputs = [p.operands[n] for n in NAMES]
    first = torch.autograd.grad(out, inputs, p.cotangent, retain_graph=True)
    second = torch.autograd.grad(out, inputs, p.cotangent)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    check(dict(zip(NAMES, second, strict=True)), reference(p), torch.float32, NAMES)
    with pytest.raises(RuntimeError, match="second time"):
        gradients(out, p)


def test_gradients_accumulate(target: str) -> None:
    p = problem(3, 7)
    attention(p).backward(p.cotangent)
    attention(p).backward(p.cotangent)
    once = run(p)
    for name, tensor in p.operands.items():
        torch.testing.assert_close(tensor.grad, 2 * once[name])


@pytest.mark.parametrize("create_graph", [False, True])
def test_the_same_tensor_as_source_and_destination(create_graph: bool, target: str) -> None:
    edges, _, _ = edges_with_hubs()
    p = problem(3, 7, edges=(edges, 37, 37))
    shared = p.operands["x_src"]
    out = attention(p.with_operands(x_dst=shared))
    (grad,) = torch.autograd.grad(out, shared, p.cotangent, create_graph=create_graph)
    apart = reference(p.with_operands(x_dst=shared.detach().clone().requires_grad_()))
    total = apart["x_src"] + apart["x_dst"]
    check({"x_src": grad}, {"x_src": total}, torch.float32)


def test_a_tensor_changed_in_place_is_noticed(target: str) -> None:
    p = problem(3, 7)
    changed = p.operands["x_dst"] * 1  # a leaf could not be changed in place
    out = attention(p.with_operands(x_dst=changed))
    changed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward(p.cotangent)


@pytest.mark.usefixtures("splitting")
@pytest.mark.parametrize("slope", [0.2, 1.5])
@pytest.mark.thorough
def test_gradcheck(slope: float) -> None:
    p = problem(2, 3, torch.float64, slope=slope)
    assert torch.autograd.gradcheck(_call(p), [p.operands[n] for n in NAMES], fast_mode=True)


@pytest.mark.usefixtures("splitting")
def test_gradgradcheck() -> None:
    p = problem(2, 3, torch.float64)
    assert torch.autograd.gradgradcheck(_call(p), [p.operands[n] for n in NAMES], fast_mode=True)


@pytest.mark.parametrize("needs", [("x_src",), ("att", "x_dst"), NAMES], ids="+".join)
def test_second_derivatives(needs: tuple[str, ...], target: str, splitting: None) -> None:
    p = problem(3, 7)
    want = _second(as_dtype(p, torch.float64), twin, needs)
    got = _second(p, attention, needs)
    for name, value in want.items():
        torch.testing.assert_close(got[name].double(), value, rtol=1e-3, atol=1e-4)


def test_second_derivatives_of_one_tensor_used_twice(target: str) -> None:
    edges, _, _ = edges_with_hubs()

    def penalty(p: Problem, function: object) -> Tensor:
        shared = p.operands["x_src"]
        out = function(p.with_operands(x_dst=shared))
        (first,) = torch.autograd.grad(out, shared, p.cotangent, create_graph=True)
        return torch.autograd.grad(first.square().sum(), shared)[0]

    p = problem(3, 7, edges=(edges, 37, 37))
    want = penalty(as_dtype(p, torch.float64), twin)
    torch.testing.assert_close(penalty(p, attention).double(), want, rtol=1e-3, atol=1e-3)


def test_gradients_with_a_graph_equal_those_without(target: str, splitting: None) -> None:
    p = problem(3, 7)
    inputs = [p.operands[n] for n in NAMES]
    found = torch.autograd.grad(attention(p), inputs, p.cotangent, create_graph=True)
    assert all(g.requires_grad for g in found)
    check(dict(zip(NAMES, found, strict=True)), run(p), torch.float32, NAMES)


def test_sixteen_bit_gradients_with_a_graph(target: str) -> None:
    p = problem(3, 7, torch.bfloat16)
    inputs = [p.operands[n] for n in NAMES]
    found = torch.autograd.grad(attention(p), inputs, p.cotangent, create_graph=True)
    check(dict(zip(NAMES, found, strict=True)), reference(p), torch.bfloat16, NAMES)


def test_checkpointing_gives_the_same_bits(target: str) -> None:
    p = problem(3, 7)
    first = run(p)
    out = torch.utils.checkpoint.checkpoint(
        _call(p), *(p.operands[n] for n in NAMES), use_reentrant=False
    )
    assert same_bits(first, {"out": out.detach(), **gradients(out, p)})


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("backward", [False, True])
def test_nothing_is_left_behind(backward: bool, target: str, no_collector: None) -> None:
    p = problem(3, 7)
    out = attention(p)
    if backward:
        gradients(out, p)
    left = [weakref.ref(o) for o in (out, out.grad_fn, p.graph, *p.operands.values())]
    del out, p
    assert [o() for o in left] == [None] * len(left)


def test_backward_in_another_thread(target: str) -> None:
    """Autograd keeps the engine of the forward pass, wherever backward runs."""
    p = problem(3, 7)
    expected = run(p)
    out = attention(p)
    found: list[dict[str, Tensor]] = []
    thread = threading.Thread(target=lambda: found.append(gradients(out, p)))
    thread.start()
    thread.join()
    assert same_bits(found[0], {n: expected[n] for n in NAMES})


def _call(p: Problem):  # type: ignore[no-untyped-def]
    def call(*operands: Tensor) -> Tensor:
        return gatv2_attention(p.graph, *operands, negative_slope=p.slope)

    return call


def _second(p: Problem, function: object, needs: tuple[str, ...]) -> dict[str, Tensor]:
    """Gradient of a squared norm of gradients, towards the operands and the cotangent."""
    cotangent = p.cotangent.clone().requires_grad_()
    for name, tensor in p.operands.items():
        tensor.requires_grad_(name in needs)
    inputs = [p.operands[n] for n in needs]
    first = torch.autograd.grad(function(p), inputs, cotangent, create_graph=True)
    penalty = sum(g.square().sum() for g in first)
    second = torch.autograd.grad(penalty, [*inputs, cotangent])
    return dict(zip([*needs, "cotangent"], second, strict=True))


def test_a_graph_can_be_dropped_before_backward(target: str) -> None:
    p = problem(3, 7)
    out, operands, cotangent = attention(p), p.operands, p.cotangent
    want = reference(p)
    graph = weakref.ref(p.graph)
    del p
    assert isinstance(graph(), Graph)  # autograd holds it until then
    grads = torch.autograd.grad(out, list(operands.values()), cotangent)
    check(dict(zip(operands, grads, strict=True)), want, torch.float32, NAMES)


def test_a_batch_of_cotangents_is_refused() -> None:
    graph = Graph.from_edge_index(torch.tensor([[0, 1, 2], [1, 1, 0]]), 3, 2)
    x, r, att = torch.randn(3, 1, 4, requires_grad=True), torch.randn(2, 1, 4), torch.randn(1, 4)
    out = gatv2_attention(graph, x, r, att)
    with pytest.raises(RuntimeError, match="a batch of gradients"):
        torch.autograd.grad(out, x, torch.randn(5, *out.shape), is_grads_batched=True)
