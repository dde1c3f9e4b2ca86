"""Autograd on CUDA: what is asked for alone, repeats, second derivatives, threads, leaks."""

from __future__ import annotations

import gc
import itertools
import threading

import torch

from gnn_backend.profile import profile
from tests.gpu import support
from tests.gpu.support import chunks_of, raises, table
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

pytestmark = support.MARKS
SUBSETS = [s for n in range(1, 4) for s in itertools.combinations(NAMES, n)]


@table("needs", SUBSETS)
@table("chunk", [8, 1000])
def test_only_what_is_needed(needs: tuple[str, ...], chunk: int) -> None:
    with chunks_of(chunk):
        p = problem(3, 7, device=support.DEVICE)
        want = reference(p)
        for name, tensor in p.operands.items():
            tensor.requires_grad_(name in needs)
        out = attention(p)
        with profile() as backward:
            out.backward(p.cotangent)
    grads = {n: t.grad for n, t in p.operands.items() if t.grad is not None}
    assert set(grads) == set(needs)
    check(grads, want, torch.float32, needs)
    ran = {name for _, name in backward.launches}
    assert any(name.endswith("backward_dst") for name in ran) == (needs != ("x_src",))
    assert any(name.endswith("backward_src") for name in ran) == (needs != ("x_dst",))


def test_backward_twice() -> None:
    p = problem(device=support.DEVICE)
    out, inputs = attention(p), [p.operands[n] for n in NAMES]
    first = torch.autograd.grad(out, inputs, p.cotangent, retain_graph=True)
    second = torch.autograd.grad(out, inputs, p.cotangent)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    raises(RuntimeError, lambda: gradients(out, p), "second time")


@table("create_graph", [False, True])
def test_one_tensor_used_twice(create_graph: bool) -> None:
    p = problem(3, 7, edges=(edges_with_hubs()[0], 37, 37), device=support.DEVICE)
    shared = p.operands["x_src"]
    out = attention(p.with_operands(x_dst=shared))
    (grad,) = torch.autograd.grad(out, shared, p.cotangent, create_graph=create_graph)
    apart = reference(p.with_operands(x_dst=shared.detach().clone().requires_grad_()))
    check({"x_src": grad}, {"x_src": apart["x_src"] + apart["x_dst"]}, torch.float32)


def second(p: Problem, function: object) -> list[torch.Tensor]:
    inputs = [p.operands[n] for n in NAMES]
    first = torch.autograd.grad(function(p), inputs, p.cotangent, create_graph=True)
    return list(torch.autograd.grad(sum(g.square().sum() for g in first), inputs))


def test_second_derivatives() -> None:
    p = problem(3, 7, device=support.DEVICE)
    got, want = second(p, attention), second(as_dtype(p, torch.float64), twin)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3)


def test_a_tensor_changed_in_place_is_noticed() -> None:
    p = problem(3, 7, device=support.DEVICE)
    changed = p.operands["x_dst"] * 1
    out = attention(p.with_operands(x_dst=changed))
    changed.add_(1)
    raises(RuntimeError, lambda: out.backward(p.cotangent), "modified by an inplace operation")


def test_threads() -> None:
    """Calls from new threads, in which the driver has no context yet, all at once."""
    p = problem(device=support.DEVICE)
    expected, found, start = run(p), [], threading.Barrier(6)

    def work() -> None:
        start.wait()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            found.append(run(p))
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and all(same_bits(expected, result) for result in found)


@table("backward", [False, True])
def test_nothing_is_left_behind(backward: bool) -> None:
    """Memory stays as it was, without the garbage collector."""
    p = problem(device=support.DEVICE)
    run(p)
    gc.collect()
    gc.disable()
    try:
        before = torch.cuda.memory_allocated()
        for _ in range(50):
            out = attention(p)
            if backward:
                gradients(out, p)
            del out
        assert torch.cuda.memory_allocated() == before
        del p
        assert torch.cuda.memory_allocated() < before
    finally:
        gc.enable()
