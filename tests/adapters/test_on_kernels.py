"""Every attention layer on the kernels themselves: plain, and with all options at once, as stock.

Few combinations, as each compiles kernels of its own; those of arguments are tested beside the
adapters of each host.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gnn_backend import config
from tests.adapters.attention import check_equals_stock
from tests.adapters.pyg.helpers import edges, normal

NODES, WIDTH, EDGE_WIDTH = 12, 6, 3


def _pyg(name: str, edge_dim: bool, **options: Any) -> None:
    nn = pytest.importorskip("torch_geometric").nn
    edge_index = edges(NODES, NODES)
    given = {"edge_dim": EDGE_WIDTH} if edge_dim else {}
    sizes = () if name == "AGNNConv" else (WIDTH, 4, 2)
    conv = getattr(nn, name)(*sizes, **given, **options)
    args: list[Any] = [normal(NODES, WIDTH), edge_index]
    call: dict[str, Any] = {}
    if edge_dim:
        args.append(normal(edge_index.shape[1], EDGE_WIDTH, seed=2))
        call["return_attention_weights"] = True
    check_equals_stock(conv, "pyg", *args, **call)


def _dgl(name: str, everything: bool, **options: Any) -> None:
    dgl = pytest.importorskip("dgl")
    from dgl.nn import pytorch as nn

    graph = dgl.graph(tuple(edges(NODES, NODES)), num_nodes=NODES)
    with_edges = name == "EdgeGATConv"
    sizes = (WIDTH, EDGE_WIDTH, 4, 2) if with_edges else (WIDTH, 4, 2)
    sizes = () if name == "AGNNConv" else sizes
    conv = getattr(nn, name)(*sizes, allow_zero_in_degree=True, **options)
    args = [graph, normal(NODES, WIDTH)]
    if with_edges:
        args.append(normal(graph.num_edges(), EDGE_WIDTH, seed=2))
    check_equals_stock(conv, "dgl", *args, **({"get_attention": True} if everything else {}))


LAYERS: dict[str, Callable[[], None]] = {
    "PyG GATConv": lambda: _pyg("GATConv", False),
    "PyG GATConv with all": lambda: _pyg("GATConv", True, dropout=0.4, residual=True),
    "PyG GATv2Conv with all": lambda: _pyg("GATv2Conv", True, dropout=0.4, residual=True),
    "PyG GATv2Conv with dropout": lambda: _pyg("GATv2Conv", False, dropout=0.4),
    "PyG TransformerConv": lambda: _pyg("TransformerConv", False),
    "PyG TransformerConv with all": lambda: _pyg("TransformerConv", True, beta=True),
    "PyG SuperGATConv": lambda: _pyg("SuperGATConv", False, dropout=0.4),
    "PyG AGNNConv": lambda: _pyg("AGNNConv", False),
    "DGL GATConv": lambda: _dgl("GATConv", False),
    "DGL EdgeGATConv with all": lambda: _dgl("EdgeGATConv", True, attn_drop=0.4),
    "DGL GATv2Conv with dropout": lambda: _dgl("GATv2Conv", False, attn_drop=0.4),
    "DGL DotGatConv": lambda: _dgl("DotGatConv", False),
    "DGL AGNNConv": lambda: _dgl("AGNNConv", False),
}


#: On the device kernels as well, run on the host.
EMULATED = ("PyG GATConv with all", "PyG TransformerConv with all", "DGL EdgeGATConv with all",
            "DGL AGNNConv")  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_equals_stock(name: str) -> None:
    torch.manual_seed(0)
    LAYERS[name]()


@pytest.mark.parametrize("name", EMULATED)
def test_equals_stock_on_the_emulator(name: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels with")
    torch.manual_seed(0)
    with config.override(cpu_target="emulator"):
        LAYERS[name]()
