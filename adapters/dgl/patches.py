"""What is patched in DGL; read without importing ``dgl``."""

from __future__ import annotations

from gnn_backend.adapters.dgl.dispatch import DGLDispatcher
from gnn_backend.adapters.dgl.graph import sharing_with_parent
from gnn_backend.adapters.dgl.residence import patch as residence
from gnn_backend.patching import Patch

_ADAPTERS = "gnn_backend.adapters.dgl"


def _layer(module: str, layer: str, adapter: str) -> Patch:
    """The patch of a layer whose adapter has the usual four functions."""
    return Patch(
        "dgl",
        f"dgl.nn.pytorch.conv.{module}",
        f"{layer}.forward",
        layer,
        DGLDispatcher(
            f"dgl.{layer}",
            eligible=f"{_ADAPTERS}.{adapter}:eligible",
            fast=f"{_ADAPTERS}.{adapter}:fast",
            saves=f"{_ADAPTERS}.{adapter}:edgewise_bytes",
            static=f"{_ADAPTERS}.{adapter}:static_reason",
        ),
    )


PATCHES = [
    _layer("gatv2conv", "GATv2Conv", "conv"),
    _layer("gatconv", "GATConv", "gat"),
    _layer("edgegatconv", "EdgeGATConv", "edge_gat"),
    _layer("dotgatconv", "DotGatConv", "dot_gat"),
    _layer("agnnconv", "AGNNConv", "agnn"),
    Patch(
        "dgl",
        "dgl.ops.edge_softmax",
        "edge_softmax",
        "attention_pattern",
        residence.Seam(f"{_ADAPTERS}.pattern:edge_softmax"),
    ),
    Patch(  # so that a relation's Graph is built once, not at every hg[etype]
        "dgl",
        "dgl.heterograph_index",
        "HeteroGraphIndex.get_relation_graph",
        "relation_graphs",
        sharing_with_parent,
        shared=True,
    ),
    *residence.PATCHES,
]
