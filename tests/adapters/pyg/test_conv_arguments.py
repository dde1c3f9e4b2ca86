"""Every constructor and forward argument of ``GATv2Conv``: output and all gradients as stock."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.adapters.pyg.helpers import assert_equal, edges, fused, gradients, normal, pairwise

pytest.importorskip("torch_geometric")
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATv2Conv

FEATURES = (6, 5)  # of sources and, for a pair input, of destinations
SIZES = {"one": (12, 12), "pair": (12, 12), "wide": (9, 14), "tall": (14, 9)}
CHOICES: dict[str, list[Any]] = {
    "form": ["list", "int32", "sorted", "csr", "coo"],
    "nodes": ["one", "pair", "wide", "tall"],
    "in_channels": ["given", "lazy"],
    "flow": ["source_to_target", "target_to_source"],
    "heads": [1, 3],
    "out_channels": [1, 4, 7],
    "concat": [True, False],
    "negative_slope": [0.2, 0.0, 1.5],
    "dropout": [0.0, 0.6],
    "add_self_loops": [True, False],
    "edge_dim": [None, 3],
    "fill_value": ["mean", 1.0],
    "bias": [True, False],
    "share_weights": [True, False],
    "residual": [True, False],
    "aggr": ["add", "sum"],
}


def allowed(c: dict[str, Any]) -> bool:
    if c["flow"] == "target_to_source":
        return c["form"] in ("list", "int32", "sorted") and c["nodes"] in ("one", "pair")
    if c["form"] in ("csr", "coo") and c["nodes"] == "wide" and c["add_self_loops"]:
        return c["fill_value"] != "mean"  # PyG indexes its rows by the wrong end there
    return True


COMBINATIONS = pairwise(CHOICES, allowed) + pairwise(CHOICES, allowed, seed=1)


def make(c: dict[str, Any]) -> GATv2Conv:
    """The layer of a combination; not training where attention dropout would be active."""
    pair = FEATURES if not c["share_weights"] else (FEATURES[0],) * 2
    channels: Any = pair if c["nodes"] != "one" else pair[0]
    if c["in_channels"] == "lazy":
        channels = -1 if c["nodes"] == "one" else (-1, -1)
    names = set(CHOICES) - {"form", "nodes", "in_channels", "out_channels"}
    torch.manual_seed(1)
    conv = GATv2Conv(channels, c["out_channels"], **{name: c[name] for name in names})
    return conv.train(c["dropout"] == 0.0)


def inputs(c: dict[str, Any]) -> tuple[Any, Any]:
    num_src, num_dst = SIZES[c["nodes"]]
    pair = FEATURES if not c["share_weights"] else (FEATURES[0],) * 2
    x = normal(num_src, pair[0])
    plain = edges(num_src, num_dst)
    sparse = torch.sparse_coo_tensor(plain.flip(0), torch.ones(plain.shape[1]), (num_dst, num_src))
    forms = {
        "list": lambda: plain,
        "int32": plain.int,
        "sorted": lambda: EdgeIndex(plain, sparse_size=(num_src, num_dst)).sort_by(
            "col" if c["flow"] == "source_to_target" else "row"
        )[0],
        "csr": lambda: sparse.coalesce().to_sparse_csr(),
        "coo": sparse.coalesce,
    }
    edge_index = forms[c["form"]]()
    return (x if c["nodes"] == "one" else (x, normal(num_dst, pair[1], seed=1))), edge_index


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda c: "-".join(map(str, c.values())))
def test_equals_stock(combination: dict[str, Any]) -> None:
    stock = make(combination)
    x, edge_index = inputs(combination)
    ours = copy.deepcopy(stock)
    with fused(calls=2):
        if combination["in_channels"] == "lazy":
            torch.manual_seed(2)
            ours(x, edge_index)  # the first call makes the parameters, from the random state
        else:
            ours(x, edge_index)
        got = gradients(ours, x, edge_index)
    if combination["form"] == "int32":  # torch's scatter differentiates 32-bit ids wrongly
        edge_index = edge_index.long()
    if combination["in_channels"] == "lazy":
        torch.manual_seed(2)
        stock(x, edge_index)
    assert list(ours.state_dict()) == list(stock.state_dict())
    assert_equal(got, gradients(stock, x, edge_index))


def test_many_combinations() -> None:
    assert len(COMBINATIONS) >= 36
