"""What is patched in DGL; read without importing ``dgl``."""

from __future__ import annotations

from gnn_backend.adapters.dgl.dispatch import DGLDispatcher
from gnn_backend.adapters.dgl.graph import sharing_with_parent
from gnn_backend.adapters.dgl.residence import patch as residence
from gnn_backend.patching import Patch

_CONV = "gnn_backend.adapters.dgl.conv"

PATCHES = [
    Patch(
        "dgl",
        "dgl.nn.pytorch.conv.gatv2conv",
        "GATv2Conv.forward",
        "GATv2Conv",
        DGLDispatcher(
            "dgl.GATv2Conv",
            eligible=f"{_CONV}:eligible",
            fast=f"{_CONV}:fast",
            saves=f"{_CONV}:edgewise_bytes",
            static=f"{_CONV}:static_reason",
        ),
    ),
    Patch(
        "dgl",
        "dgl.ops.edge_softmax",
        "edge_softmax",
        "attention_pattern",
        residence.Seam("gnn_backend.adapters.dgl.pattern:edge_softmax"),
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
