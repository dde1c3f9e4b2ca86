"""Streams, CUDA graphs and devices: kernels run where torch's own operations would."""

from __future__ import annotations

import torch

from tests.gpu import support
from tests.gpu.support import table
from tests.ops.support import NAMES, Problem, attention, gradients, problem, run, same_bits

pytestmark = support.MARKS


def copy_of(p: Problem) -> Problem:
    """The same values in new memory, on the same graph."""
    operands = {n: t.detach().clone().requires_grad_() for n, t in p.operands.items()}
    return Problem(p.graph, operands, p.cotangent.clone(), p.slope)


@table("side", [False, True])
def test_inputs_that_arrive_late(side: bool) -> None:
    """The stream sleeps before it writes the inputs: a launch on another one reads zeros."""
    p = problem(device=support.DEVICE)
    expected = run(p)
    late = copy_of(p)
    values = {n: t.detach().clone() for n, t in late.operands.items()}
    with torch.no_grad():
        for tensor in (*late.operands.values(), late.cotangent):
            tensor.zero_()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream() if side else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        with torch.no_grad():
            for name, tensor in late.operands.items():
                tensor.copy_(values[name])
            late.cotangent.copy_(p.cotangent)
        got = run(late)
    stream.synchronize()
    assert same_bits(expected, got)


@table("dtype", [torch.float32, torch.bfloat16])
def test_capture_and_replay(dtype: torch.dtype) -> None:
    first, second = (problem(2, 64, dtype, seed=s, device=support.DEVICE) for s in (0, 1))
    second.graph = first.graph
    static = copy_of(first)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(static)  # kernels are loaded before the capture
    torch.cuda.current_stream().wait_stream(stream)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        out = attention(static)
        captured = {"out": out, **gradients(out, static)}
    for p in (second, first):
        with torch.no_grad():
            for name in NAMES:
                static.operands[name].copy_(p.operands[name])
            static.cotangent.copy_(p.cotangent)
        for _ in range(3):
            recorded.replay()
        torch.cuda.synchronize()
        assert same_bits(run(p), {n: t.detach() for n, t in captured.items()})


def test_another_device_than_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        support.skip("one CUDA device")
    expected = run(problem(device="cuda:0"))
    p = problem(device="cuda:1")
    got = run(p)
    assert torch.cuda.current_device() == 0
    assert all(t.device.index == 1 for t in got.values())
    with torch.cuda.device(1):
        assert same_bits(got, run(p))
        inside = run(problem(device="cuda:0"))
        assert torch.cuda.current_device() == 1
    assert same_bits(expected, inside)
    if torch.cuda.get_device_properties(0).name == torch.cuda.get_device_properties(1).name:
        assert same_bits({n: t.cpu() for n, t in expected.items()},
                         {n: t.cpu() for n, t in got.items()})  # fmt: skip
