"""``RGCNConv``, ``FastRGCNConv`` and ``RGATConv``: output and all gradients as stock."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gnn_backend

pytest.importorskip("torch_geometric")
from torch_geometric.nn import FastRGCNConv, RGATConv, RGCNConv

from tests.adapters.dgl.aggregation import name
from tests.adapters.grid.covering import pairwise
from tests.adapters.pyg.helpers import edges, falls_back, normal
from tests.adapters.relational import check, in_torch

__all__ = ["in_torch"]

TYPES, NODES = 4, 12
CONVOLUTION: dict[str, list[Any]] = {
    "layer": [RGCNConv, FastRGCNConv],
    "aggr": ["add", "mean", "max"],
    "bases": [None, "num_bases", "num_blocks"],
    "root_weight": [True, False],
    "bias": [True, False],
    "pair": [True, False],
    "flow": ["source_to_target", "target_to_source"],
    "types": [torch.int64, torch.int32],
    "dtype": [torch.float32, torch.float64],
}
ATTENTION: dict[str, list[Any]] = {
    "bases": [None, "num_bases", "num_blocks"],
    "mod": [None, "additive", "scaled", "f-additive", "f-scaled"],
    "attention_mechanism": ["across-relation", "within-relation"],
    "mode": [("additive-self-attention", 1), ("multiplicative-self-attention", 1),
             ("multiplicative-self-attention", 3)],
    "heads": [1, 2],
    "concat": [True, False],
    "dropout": [0.0, 0.4],
    "edge_dim": [None, 3],
    "bias": [True, False],
    "returns": [None, True],
    "dtype": [torch.float32, torch.float64],
}  # fmt: skip


def kinds(count: int) -> torch.Tensor:
    """Types of edges, of which one does not occur."""
    found = torch.arange(count) * 7 % TYPES
    return torch.where(found == TYPES - 2, 0, found)


def _valid(c: dict[str, Any]) -> bool:
    return not (c["layer"] is FastRGCNConv and c["aggr"] == "max") and not (
        c["pair"] and c["flow"] == "target_to_source"
    )


@pytest.mark.usefixtures("in_torch")
@pytest.mark.parametrize("c", pairwise(CONVOLUTION, _valid), ids=name)
def test_rgcn(c: dict[str, Any]) -> None:
    torch.manual_seed(1)
    bases = {c["bases"]: 2} if c["bases"] else {}
    options = {n: c[n] for n in ("aggr", "root_weight", "bias", "flow")} | bases
    conv = c["layer"]((6, 6) if c["pair"] else 6, 4, TYPES, **options).to(c["dtype"])
    edge_index = edges(NODES, NODES)
    x = normal(NODES, 6, dtype=c["dtype"])
    given = (x, normal(NODES, 6, seed=5, dtype=c["dtype"])) if c["pair"] else x
    check("pyg", conv, given, edge_index, kinds(edge_index.shape[1]).to(c["types"]))


def _right(c: dict[str, Any]) -> bool:
    """Stock ``FastRGCNConv`` takes a node's place for its number."""
    return not (c["layer"] is FastRGCNConv and c["form"] != "none")


NUMBERS: dict[str, list[Any]] = {
    "layer": [RGCNConv, FastRGCNConv],
    "aggr": ["add", "mean", "max"],
    "bases": [None, "num_bases"],
    "root_weight": [True, False],
    "form": ["none", "numbers", "pair"],
    "flow": ["source_to_target", "target_to_source"],
    "dtype": [torch.float32, torch.float64],
}


@pytest.mark.usefixtures("twin_aggregation")
@pytest.mark.parametrize(
    "c",
    pairwise(NUMBERS, lambda c: _valid(c | {"pair": c["form"] == "pair"}) and _right(c)),
    ids=name,
)
def test_rgcn_of_node_numbers(c: dict[str, Any]) -> None:
    torch.manual_seed(1)
    bases = {c["bases"]: 2} if c["bases"] else {}
    rows = NODES if c["form"] == "none" else 7
    options = {n: c[n] for n in ("aggr", "root_weight", "flow")} | bases
    conv = c["layer"]((rows, rows) if c["form"] == "pair" else rows, 4, TYPES, **options)
    edge_index = edges(NODES, NODES)
    numbers = torch.arange(NODES) * 5 % 7 - 2  # negative ones count from the end
    given = {"none": None, "numbers": numbers, "pair": (numbers, numbers.flip(0))}[c["form"]]
    check("pyg", conv.to(c["dtype"]), given, edge_index, kinds(edge_index.shape[1]))


def test_both_layers_read_the_same_rows() -> None:
    """As documented, where stock's paths disagree."""
    edge_index, numbers = edges(NODES, NODES), torch.arange(NODES) * 5 % 7
    types = kinds(edge_index.shape[1])
    plain = RGCNConv(7, 4, TYPES, aggr="add")
    fast = FastRGCNConv(7, 4, TYPES, aggr="add")
    fast.load_state_dict(plain.state_dict())
    want = plain(numbers, edge_index, types)
    with gnn_backend.enabled():
        torch.testing.assert_close(fast(numbers, edge_index, types), want)


def test_node_numbers_out_of_range_are_refused() -> None:
    edge_index = edges(NODES, NODES)
    conv = RGCNConv(7, 4, TYPES)
    with gnn_backend.enabled(), pytest.raises(IndexError):
        conv(torch.full((NODES,), 7), edge_index, kinds(edge_index.shape[1]))


class Both(torch.nn.Module):
    """Output and weights as one tensor."""

    def __init__(self, conv: Any, returns: bool | None) -> None:
        super().__init__()
        self.conv, self.returns = conv, returns

    def forward(self, *args: Any) -> torch.Tensor:
        out = self.conv(*args, return_attention_weights=self.returns)
        if self.returns is None:
            return out  # type: ignore[no-any-return]
        return torch.cat([out[0].flatten(), out[1][1].flatten()])


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("in_torch")
@pytest.mark.parametrize(
    "c", pairwise(ATTENTION, lambda c: not (c["dropout"] and c["mod"])), ids=name
)
def test_rgat(c: dict[str, Any]) -> None:
    torch.manual_seed(1)
    bases = {c["bases"]: 2} if c["bases"] else {}
    options = {n: c[n] for n in ("mod", "attention_mechanism", "heads", "concat", "dropout",
                                 "edge_dim", "bias")} | bases  # fmt: skip
    mode, dim = c["mode"]
    conv = RGATConv(6, 4, TYPES, attention_mode=mode, dim=dim, **options).to(c["dtype"])
    torch.nn.init.normal_(conv.l2)  # which stock leaves as memory happens to be
    edge_index = edges(NODES, NODES)
    count = edge_index.shape[1]
    attr = normal(count, 3, seed=6, dtype=c["dtype"]) if c["edge_dim"] else None
    x = normal(NODES, 6, dtype=c["dtype"])
    check("pyg", Both(conv, c["returns"]), x, edge_index, kinds(count), attr)


def test_on_the_kernels_of_the_cpu() -> None:
    edge_index = edges(NODES, NODES)
    check("pyg", RGATConv(6, 4, TYPES, heads=2), normal(NODES, 6), edge_index,
          kinds(edge_index.shape[1]))  # fmt: skip


def test_falls_back() -> None:
    edge_index = edges(NODES, NODES)
    types = kinds(edge_index.shape[1])
    with falls_back("input-form"):  # numbers of the sources alone
        RGCNConv((NODES, NODES), 4, TYPES)((None, torch.arange(NODES)), edge_index, types)
    conv = RGCNConv(6, 4, TYPES, aggr="min")
    with falls_back("aggregation"):
        conv(normal(NODES, 6), edge_index, types)


def test_types_out_of_range_give_the_hosts_error() -> None:
    edge_index = edges(NODES, NODES)
    wrong = kinds(edge_index.shape[1]) + 2
    with gnn_backend.enabled(hosts="pyg"), pytest.raises(IndexError, match="out of bounds"):
        FastRGCNConv(6, 4, TYPES)(normal(NODES, 6), edge_index, wrong)
