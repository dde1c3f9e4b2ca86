"""Readouts of batched graphs and pooling modules on the kernels, run on the host."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gnn_backend
from gnn_backend import config

pytest.importorskip("dgl")
import dgl
import dgl.nn.pytorch as dglnn

from tests.adapters.attention import check_equals_stock

SIZES = (4, 1, 0, 7)
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def batch() -> Any:
    """Graphs of several sizes, one of them empty, with edges."""
    generator = torch.Generator().manual_seed(0)
    graphs = []
    for size in SIZES:
        ends = torch.randint(max(size, 1), (2, 3 * size), generator=generator)
        graphs.append(dgl.graph((ends[0], ends[1]), num_nodes=size))
    return dgl.batch(graphs)


class Readout(torch.nn.Module):
    """One of DGL's functions as a layer."""

    def __init__(self, name: str, weighted: bool) -> None:
        super().__init__()
        self.function: Callable[..., Tensor] = getattr(dgl, name)
        self.nodes = name.endswith("nodes")
        self.weighted = weighted

    def forward(self, graph: Any, feat: Tensor, weight: Tensor) -> Tensor:
        with graph.local_scope():
            data = graph.ndata if self.nodes else graph.edata
            data["h"] = feat
            if not self.weighted:
                return self.function(graph, "h")
            data["w"] = weight
            return self.function(graph, "h", "w")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["nodes", "edges"])
@pytest.mark.parametrize("op", ["sum", "mean", "max", "softmax"])
def test_functions(op: str, kind: str, weighted: bool) -> None:
    if op == "softmax" and weighted:
        pytest.skip("takes no weights")
    graph = batch()
    rows = graph.num_nodes() if kind == "nodes" else graph.num_edges()
    generator = torch.Generator().manual_seed(1)
    feat = torch.randn(rows, 3, 2, generator=generator)
    weight = torch.randn(rows, 1, 1, generator=generator)
    with config.override(cpu_target="emulator"), gnn_backend.profile() as profile:
        check_equals_stock(Readout(f"{op}_{kind}", weighted), "dgl", graph, feat, weight)
    assert profile.by_symbol["dgl.readout"].accelerated == 1
    assert not profile.host_operators


POOLS: dict[str, Callable[[], torch.nn.Module]] = {
    "SumPooling": dglnn.SumPooling,
    "AvgPooling": dglnn.AvgPooling,
    "MaxPooling": dglnn.MaxPooling,
    "GlobalAttentionPooling": lambda: dglnn.GlobalAttentionPooling(torch.nn.Linear(6, 1)),
    "WeightAndSum": lambda: dglnn.WeightAndSum(6),
    "Set2Set": lambda: dglnn.Set2Set(6, 2, 1),
}


@pytest.mark.parametrize("name", POOLS)
def test_pooling_modules(name: str) -> None:
    graph = batch()
    torch.manual_seed(0)
    module, feat = POOLS[name](), torch.randn(graph.num_nodes(), 6)
    want = module(graph, feat)
    with (
        config.override(cpu_target="emulator"),
        gnn_backend.enabled(mode="verify", hosts="dgl"),
        gnn_backend.profile() as profile,
    ):
        got = module(graph, feat)
    torch.testing.assert_close(got, want)
    assert profile.launches and not profile.reasons


def test_infinite_extremes_are_zero() -> None:
    lengths = torch.tensor([2, 2])
    for value in (torch.inf, -torch.inf):
        rows = torch.tensor([[value], [1.0], [value], [value]])
        for reducer in ("max", "min"):
            want = dgl.ops.segment_reduce(lengths, rows, reducer)
            with config.override(cpu_target="emulator"), gnn_backend.enabled(hosts="dgl"):
                got = dgl.ops.segment_reduce(lengths, rows, reducer)
            assert torch.equal(got, want)


def test_lengths_are_summed_once_and_follow_edits() -> None:
    lengths, rows = torch.tensor([1, 3]), torch.randn(4, 2)
    with config.override(cpu_target="emulator"), gnn_backend.enabled(hosts="dgl"):
        first = dgl.ops.segment_reduce(lengths, rows)
        lengths.copy_(torch.tensor([3, 1]))
        second = dgl.ops.segment_reduce(lengths, rows)
    torch.testing.assert_close(first, torch.stack([rows[0], rows[1:].sum(0)]))
    torch.testing.assert_close(second, torch.stack([rows[:3].sum(0), rows[3]]))


def test_on_the_cpu_they_are_dgls_own() -> None:
    graph = batch()
    with gnn_backend.enabled(mode="strict", hosts="dgl"), gnn_backend.profile() as profile:
        dglnn.SumPooling()(graph, torch.randn(graph.num_nodes(), 6))
    assert not profile.launches and not profile.reasons
