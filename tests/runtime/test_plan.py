"""Launch plans: kept with the graph, one a layout, sized from the row splits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gnn_backend import config
from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.runtime import selection
from gnn_backend.runtime.plan import Plan, plan_for
from tests.ops.support import attention, edges_with_hubs, problem

GATV2 = FUNCTORS["gatv2"]


@pytest.fixture(autouse=True)
def on_the_emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(selection, "chunk_for", lambda *_: 8)
    with config.override(cpu_target="emulator"):
        yield


def make_graph() -> Graph:
    return Graph.from_edge_index(*edges_with_hubs())


def test_a_plan_is_made_once_for_each_layout() -> None:
    graph = make_graph()
    plan = plan_for(GATV2, graph, torch.float32, 2, 64, 1)
    assert plan_for(GATV2, graph, torch.float32, 2, 64, 1) is plan
    others = [(torch.float16, 2, 64, 1), (torch.float32, 4, 64, 1), (torch.float32, 2, 32, 1),
              (torch.float32, 2, 64, 132)]  # fmt: skip
    plans = [plan_for(GATV2, graph, *other) for other in others]
    assert len({id(p) for p in [plan, *plans]}) == 5
    graph.clear()
    assert plan_for(GATV2, graph, torch.float32, 2, 64, 1) is not plan


def test_the_transposed_adjacency_waits_for_a_backward() -> None:
    p = problem(3, 7)
    out = attention(p)
    assert p.graph._by_src is None
    out.backward(p.cotangent)
    assert p.graph._by_src is not None


@pytest.mark.parametrize(("heads", "dim"), [(2, 64), (3, 7), (8, 256)])
def test_every_task_has_a_lane_group(heads: int, dim: int) -> None:
    graph = make_graph()
    plan = Plan(GATV2, graph, torch.float32, heads, dim, 1)
    for side, direction in ((plan.dst, "dst"), (plan.src(graph), "src")):
        splits = graph.splits(direction, 8)
        assert (side.num_tasks, side.num_slots) == (splits.num_tasks, splits.num_slots)
        assert side.num_heavy == splits.heavy_rows.numel() > 0
        groups = side.blocks * plan.rows_a_block
        assert splits.num_tasks <= groups < splits.num_tasks + plan.rows_a_block
        assert 1 <= side.persistent_blocks <= side.blocks
        assert side.indices == graph.csr(direction).indices.data_ptr()
    assert plan.grid_y * plan.shape.heads == heads


def test_large_devices_get_more_persistent_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnn_backend.runtime.plan._WAVES", {"dst": 1, "src": 1})
    graph = make_graph()
    few, many = (Plan(GATV2, graph, torch.float32, 1, 512, n).dst for n in (1, 132))
    assert few.persistent_blocks == 3 < many.persistent_blocks == many.blocks


@pytest.mark.parametrize(("heads", "dim"), [(1, 1025), (2**20, 1024)])
def test_rows_that_are_too_wide(heads: int, dim: int) -> None:
    with pytest.raises(Unsupported) as caught:
        Plan(GATV2, make_graph(), torch.float32, heads, dim, 1)
    assert caught.value.reason == "head-dim"
