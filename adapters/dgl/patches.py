"""What is patched in DGL; read without importing ``dgl``."""

from __future__ import annotations

from gnn_backend.adapters.dgl.dispatch import DGLDispatcher
from gnn_backend.adapters.dgl.graph import sharing_with_parent
from gnn_backend.adapters.dgl.residence import patch as residence
from gnn_backend.patching import Patch

_ADAPTERS = "gnn_backend.adapters.dgl"


def _layer(module: str, layer: str, adapter: str, prefix: str = "") -> Patch:
    """The patch of a layer whose adapter has the usual four functions."""
    names = {
        "eligible": f"{prefix}eligible",
        "fast": f"{prefix}fast",
        "saves": f"{prefix}edgewise_bytes",
        "static": f"{prefix}static_reason",
    }
    where = {use: f"{_ADAPTERS}.{adapter}:{name}" for use, name in names.items()}
    return Patch(
        "dgl",
        f"dgl.nn.pytorch.conv.{module}",
        f"{layer}.forward",
        layer,
        DGLDispatcher(f"dgl.{layer}", **where),
    )


PATCHES = [
    _layer("gatv2conv", "GATv2Conv", "conv"),
    _layer("gatconv", "GATConv", "gat"),
    _layer("edgegatconv", "EdgeGATConv", "gat", "edge_"),
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
