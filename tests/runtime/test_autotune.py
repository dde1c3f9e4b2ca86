"""Measured choices: the fastest wins, is kept on disk, and a damaged file is no obstacle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gnn_backend.config import override
from gnn_backend.datasets import uniform
from gnn_backend.graph import Graph
from gnn_backend.runtime import autotune


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    autotune._known.clear()
    with override(cache_dir=tmp_path):
        yield tmp_path / autotune.PART
    autotune._known.clear()


class Clock:
    """Times by candidate, and what was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, candidate: int) -> float:
        self.asked.append(candidate)
        return {64: 3.0, 128: 1.0, 256: 2.0}[candidate]


def test_the_fastest_is_measured_once(folder: Path) -> None:
    clock = Clock()
    assert autotune.known("some GPU", "dot") is None
    assert autotune.best("some GPU", "dot", (64, 128, 256), clock) == 128
    assert autotune.best("some GPU", "dot", (64, 128, 256), clock) == 128
    assert clock.asked == [64, 128, 256]
    assert json.loads((folder / "some-GPU.json").read_text()) == {"dot": 128}


def test_a_new_process_reads_what_was_found(folder: Path) -> None:
    autotune.best("gpu", "dot", (64, 128), Clock())
    autotune._known.clear()
    clock = Clock()
    assert autotune.best("gpu", "dot", (64, 128), clock) == 128 and not clock.asked
    assert autotune.known("another", "dot") is None


def test_a_known_class_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mini-batches make a graph a step."""
    autotune.best("gpu", "dot", (64, 128), Clock())
    monkeypatch.setattr(autotune, "writable_folder", None)
    assert autotune.best("gpu", "dot", (64, 128), Clock()) == 128


def test_processes_add_to_each_other(folder: Path) -> None:
    autotune.best("gpu", "dot", (64, 128), Clock())
    (folder / "gpu.json").write_text(json.dumps({"gat": 64}))  # by another process meanwhile
    autotune.best("gpu", "gatv2", (64,), Clock())
    assert json.loads((folder / "gpu.json").read_text()) == {"dot": 128, "gat": 64, "gatv2": 64}


@pytest.mark.parametrize("text", ["{", "[]", '{"dot": "x"}', '{"dot": null}'])
def test_a_damaged_file_is_measured_anew(folder: Path, text: str) -> None:
    folder.mkdir(parents=True)
    (folder / "gpu.json").write_text(text)
    assert autotune.best("gpu", "dot", (64, 128), Clock()) == 128
    assert json.loads((folder / "gpu.json").read_text()) == {"dot": 128}


def test_a_graph_class_is_sizes_within_a_factor_of_two() -> None:
    def of(edges: int, nodes: int = 100) -> str:
        return autotune.graph_class(
            Graph.from_edge_index(uniform(nodes, nodes, edges), nodes, nodes)
        )

    assert of(1000).startswith("e10-s7-d7-mean3-max")
    assert of(1000) == of(1001)
    assert of(1000) != of(4000) and of(1000) != of(1000, 400)
    empty = Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.int64), 1, 1)
    assert autotune.graph_class(empty) == "e0-s0-d0-mean0-max0"


def test_milliseconds_of_a_call_on_the_cpu() -> None:
    calls: list[int] = []
    assert autotune.milliseconds(lambda: calls.append(1), torch.device("cpu")) >= 0
    assert len(calls) == autotune._WARMUP + autotune._SAMPLES


def test_attention_runs_at_the_measured_task_length(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gnn_backend.ops.attention import gatv2_attention
    from gnn_backend.runtime.plan import Plan
    from gnn_backend.runtime.selection import CHUNKS

    tried: list[int] = []

    def clock(call: object, device: torch.device) -> float:
        call()  # type: ignore[operator]
        (plan,) = (p for p in graph.plans.values() if isinstance(p, Plan))
        tried.append(plan.chunk)
        return abs(plan.chunk - 128)

    monkeypatch.setattr(autotune, "milliseconds", clock)
    graph = Graph.from_edge_index(uniform(20, 20, 60), 20, 20)
    x = torch.randn(20, 1, 4)
    with override(autotune=True, cpu_target="emulator"):
        first = gatv2_attention(graph, x, x, torch.ones(1, 4))
        again = gatv2_attention(graph, x, x, torch.ones(1, 4))
    assert tried == list(CHUNKS)
    assert [p.chunk for p in graph.plans.values() if isinstance(p, Plan)] == [128]
    assert torch.equal(first, again)
    (file,) = folder.glob("*.json")
    ((key, chunk),) = json.loads(file.read_text()).items()
    assert chunk == 128 and key.startswith("gatv2-float32-1x4-e6-s4-d4")

    like = Graph.from_edge_index(uniform(20, 20, 60, seed=1), 20, 20)
    with override(autotune=True, cpu_target="emulator"):
        gatv2_attention(like, x, x, torch.ones(1, 4))
    assert len(tried) == len(CHUNKS)  # a graph of its class is not measured


def test_attention_runs_in_the_measured_mapping(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gnn_backend.ops.attention import dot_attention
    from gnn_backend.runtime.plan import Plan
    from gnn_backend.runtime.selection import FEATURES, NEIGHBOURS

    def clock(call: object, device: torch.device) -> float:
        call()  # type: ignore[operator]
        (plan,) = (p for p in graph.plans.values() if isinstance(p, Plan))
        tried.append((plan.chunk, plan.shape.tasks > 1))
        return plan.chunk + plan.shape.tasks

    tried: list[tuple[int, bool]] = []
    monkeypatch.setattr(autotune, "milliseconds", clock)
    graph = Graph.from_edge_index(uniform(20, 20, 60), 20, 20)
    x = torch.randn(20, 2, 64)
    with override(cpu_target="emulator"):
        fitted = dot_attention(graph, x, x, x)
        assert [p.shape.mapping for p in graph.plans.values()] == [NEIGHBOURS]
        graph.plans.clear()
        with override(autotune=True):
            measured = dot_attention(graph, x, x, x)
    assert tried[-2:] == [(32, True), (32, False)]
    assert [p.shape.mapping for p in graph.plans.values()] == [FEATURES]
    torch.testing.assert_close(measured, fitted)


def test_without_it_the_fitted_length_is_taken(folder: Path) -> None:
    from gnn_backend.ops.attention import gatv2_attention
    from gnn_backend.runtime.plan import Plan

    graph = Graph.from_edge_index(uniform(20, 20, 60), 20, 20)
    x = torch.randn(20, 1, 4)
    with override(cpu_target="emulator"):
        gatv2_attention(graph, x, x, torch.ones(1, 4))
    assert [p.chunk for p in graph.plans.values() if isinstance(p, Plan)] == [32]
    assert not folder.exists()
