"""Memory and time of a host's layer in a process of its own.

    python -m gnn_backend.bench.resident '{"host": "pyg", "layer": "GATv2Conv", ...}'

Resident memory only tells something in a process that has done nothing else: it imports the
host, runs the layer once on a tiny graph (compilation, thread pools), and then measures forward
and backward on the real one. The request is a ``Request`` as JSON, the answer a ``Measurement``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from gnn_backend import memory, verify
from gnn_backend.bench import hosts, samples, timing
from gnn_backend.compare import Sample
from gnn_backend.datasets import GraphData, load, sample_edges, uniform
from gnn_backend.errors import GNNBackendError

_WARMUP = 2  # the first steps find the allocator and the caches empty


@dataclasses.dataclass(frozen=True)
class Request:
    """What to run.

    ``graph`` is a name or an npz file, cut to ``max_edges`` edges if that is set; ``backend``
    says whether acceleration is enabled. ``options`` and ``without`` are as in ``samples.Request``.
    """

    host: str
    layer: str
    graph: str
    backend: bool
    shape: hosts.Shape = dataclasses.field(default_factory=hosts.Shape)
    dtype: str = "float32"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    without: tuple[str, ...] = ()
    max_edges: int | None = None
    repeats: int = 3


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Peak resident growth of one forward+backward (None: not known), and median milliseconds."""

    peak_bytes: int | None
    forward_ms: float
    forward_backward_ms: float


class MeasurementFailed(GNNBackendError):
    """The process that was to measure ended with an error."""


def measure(request: Request, **environment: str) -> Measurement:
    """Measure in a fresh process, with ``environment`` added to its variables."""
    command = [sys.executable, "-m", "gnn_backend.bench.resident"]
    command.append(json.dumps(dataclasses.asdict(request)))
    paths = [p for p in sys.path if p]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode != 0:
        cause = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise MeasurementFailed(f"measuring {request.host} {request.layer}: {cause[0]}")
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


def measure_here(request: Request) -> Measurement:
    """Measure in this process; see ``measure``."""
    graph = load(request.graph)
    if request.max_edges is not None:
        graph = sample_edges(graph, request.max_edges)
    wanted = samples.Request(
        request.host, request.layer, graph, request.shape, dtype=getattr(torch, request.dtype),
        options=request.options, without=tuple(request.without),
    )  # fmt: skip
    with _accelerated(request.backend):
        step(samples.sample(dataclasses.replace(wanted, data=_tiny_graph())))()
        made = samples.sample(wanted)
        run = step(made)
        peak = memory.resident_growth(run)
        both = timing.eager_ms(run, "cpu", repeats=request.repeats, warmup=_WARMUP)
        forward = step(made, backward=False)
        forward_ms = timing.eager_ms(forward, "cpu", repeats=request.repeats, warmup=1)
        return Measurement(peak, forward_ms, both)


def step(sample: Sample, backward: bool = True) -> Callable[[], None]:
    """A call that runs the layer forward, and backward with a fixed cotangent of ones."""
    inputs = verify.float_tensors("", (list(sample.args), list(sample.kwargs.values()))).values()
    leaves = [x.requires_grad_() for x in inputs]
    leaves += [p for p in sample.layer.parameters() if p.requires_grad]

    def call() -> None:
        with torch.set_grad_enabled(backward):
            out = sample.layer(*sample.args, **sample.kwargs)
        ends = [y for y in verify.float_tensors("", out).values() if y.requires_grad]
        if backward and ends:
            _pull_back(ends, leaves, sample.rematerializes)

    return call


def _pull_back(ends: list[Tensor], leaves: list[Tensor], rematerializes: bool) -> None:
    ones = [torch.ones_like(end) for end in ends]
    if not rematerializes:
        torch.autograd.grad(ends, leaves, ones, allow_unused=True)
        return
    torch.autograd.backward(ends, ones)
    for leaf in leaves:
        leaf.grad = None


def _tiny_graph() -> GraphData:
    return GraphData("tiny", uniform(64, 64, 512), 64)


@contextlib.contextmanager
def _accelerated(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    from gnn_backend import enabled

    with enabled():
        yield


def main() -> None:
    fields = json.loads(sys.argv[1])
    fields["shape"] = hosts.Shape(**fields["shape"])
    import gnn_backend  # noqa: F401 - lets DGL load where its own import fails

    print(json.dumps(dataclasses.asdict(measure_here(Request(**fields)))))


if __name__ == "__main__":
    main()
