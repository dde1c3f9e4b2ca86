"""Times of a call: by CUDA-graph replay (no launch overhead) and eager."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

INNER = 10
REPEATS = 7
_WARMUP = 3
_SETTLE_SECONDS = 0.1
_LONG_MS, _SAMPLE_MS = 5.0, 1.0  # a call that is timed as it is; a sample of shorter ones


def replay_ms(call: Callable[[], Any], inner: int = INNER, repeats: int = REPEATS) -> float:
    """Median milliseconds of one call, replaying a CUDA graph of ``inner`` calls.

    The call must launch on the current stream and must not synchronise.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARMUP):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            call()
    _settle(graph.replay)
    return _median_of_events(graph.replay, repeats) / inner


def brief_ms(call: Callable[[], Any]) -> float:
    """Milliseconds of one call, in a few milliseconds in all where the call allows it.

    By replay of a CUDA graph; calls that take so long that launches do not count are timed as they
    are, which keeps their memory out of a graph's.
    """
    call()
    estimate = _median_of_events(call, 1)
    if estimate > _LONG_MS:
        return _median_of_events(call, 3)
    inner = max(1, min(20, round(_SAMPLE_MS / max(estimate, 1e-3))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            call()
    graph.replay()
    return _median_of_events(graph.replay, 9) / inner


def settle(call: Callable[[], Any]) -> None:
    """Call until the GPU runs at its full clock."""
    call()
    _settle(call)


def eager_ms(
    call: Callable[[], Any],
    device: torch.device | str,
    inner: int = INNER,
    repeats: int = REPEATS,
    warmup: int = _WARMUP,
) -> float:
    """Median milliseconds of one call as a program makes it, launch overhead included.

    On CUDA a sample is ``inner`` calls in a row between two events, or one call where it takes so
    long that launches do not count; elsewhere it is one call.
    """
    for _ in range(warmup):
        call()
    if torch.device(device).type != "cuda":
        return wall_ms(call, repeats)
    if inner > 1 and _median_of_events(call, 1) > _LONG_MS:
        inner = 1

    def several() -> None:
        for _ in range(inner):
            call()

    return _median_of_events(several, repeats) / inner


def copy_rate(num_bytes: int, device: torch.device | str, inner: int, repeats: int) -> float:
    """Bytes a millisecond that a plain copy of ``num_bytes`` reads and writes, by graph replay."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / replay_ms(lambda: target.copy_(source), inner, repeats)


def _settle(call: Callable[[], Any]) -> None:
    """Call until the GPU has been busy long enough to run at its full clock."""
    deadline = time.perf_counter() + _SETTLE_SECONDS
    while time.perf_counter() < deadline:
        call()
        torch.cuda.synchronize()


def _median_of_events(call: Callable[[], Any], repeats: int) -> float:
    samples = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end))
    return statistics.median(samples)


def wall_ms(call: Callable[[], Any], repeats: int) -> float:
    """Median wall-clock milliseconds of one call; the call waits for what it starts."""
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples)
