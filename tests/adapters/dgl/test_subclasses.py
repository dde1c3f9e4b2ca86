"""Subclasses of the aggregating layers: fused where they change nothing that is fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gnn_backend

pytest.importorskip("dgl")
import dgl
import dgl.nn.pytorch as dglnn

pytestmark = pytest.mark.usefixtures("twin_aggregation")
GRAPH = dgl.rand_graph(12, 60)
X = torch.randn(12, 6)
EDGE = torch.randn(60, 6)


class Renamed(dglnn.GraphConv):
    """Overrides nothing."""


class Around(dglnn.SAGEConv):
    def forward(self, graph: Any, feat: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * super().forward(graph, feat.relu())


class Configured(dglnn.GINConv):
    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(6, 4), "max", learn_eps=True)


class Replaced(dglnn.TAGConv):
    def forward(self, graph: Any, feat: Tensor) -> Tensor:  # type: ignore[override]
        return self.lin(torch.cat([feat] * 3, dim=-1))


class OwnMessage(dglnn.GINEConv):
    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["hn"] - edges.data["he"]}


class OwnTower(dglnn.conv.pnaconv.PNAConvTower):
    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"msg": edges.src["h"]}


def with_own_tower() -> Any:
    conv = dglnn.PNAConv(6, 4, ["mean"], ["identity"], 1.0)
    conv.towers[0].__class__ = OwnTower
    return conv


CASES: list[tuple[Callable[[], torch.nn.Module], tuple[Tensor, ...], str]] = [
    (lambda: Renamed(6, 4, allow_zero_in_degree=True), (X,), "fused"),
    (lambda: Around(6, 4, "pool"), (X,), "fused"),
    (Configured, (X,), "fused"),
    (lambda: Replaced(6, 4, k=2), (X,), "not called"),
    (lambda: OwnMessage(torch.nn.Linear(6, 4)), (X, EDGE), "overridden-message"),
    (with_own_tower, (X,), "parametrized"),
]


@pytest.mark.parametrize(("make", "args", "outcome"), CASES)
def test_subclasses(make: Any, args: tuple[Tensor, ...], outcome: str) -> None:
    torch.manual_seed(0)
    conv = make()
    want = conv(GRAPH, *args)
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        got = conv(GRAPH, *args)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    if outcome == "fused":
        assert profile.accelerated == 1 and not profile.reasons
    else:
        assert profile.accelerated == 0
        assert set(profile.reasons) == ({outcome} if outcome != "not called" else set())
