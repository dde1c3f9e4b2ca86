"""What is patched in PyG; read without importing ``torch_geometric``."""

from __future__ import annotations

from gnn_backend.adapters.pyg.dgnn import without_dgnn
from gnn_backend.dispatch import layer_patch
from gnn_backend.patching import Patch

_ADAPTERS = "gnn_backend.adapters.pyg"


def _layer(module: str, layer: str, adapter: str) -> Patch:
    """The patch of a layer whose adapter has the usual four functions."""
    return layer_patch(
        "pyg",
        f"torch_geometric.nn.conv.{module}",
        layer,
        eligible=f"{_ADAPTERS}.{adapter}:eligible",
        fast=f"{_ADAPTERS}.{adapter}:fast",
        saves=f"{_ADAPTERS}.{adapter}:edgewise_bytes",
        static=f"{_ADAPTERS}.{adapter}:static_reason",
    )


PATCHES = [
    _layer("gatv2_conv", "GATv2Conv", "conv"),
    _layer("gat_conv", "GATConv", "gat"),
    _layer("transformer_conv", "TransformerConv", "transformer"),
    _layer("agnn_conv", "AGNNConv", "agnn"),
    _layer("supergat_conv", "SuperGATConv", "supergat"),
    _layer("fused_gat_conv", "FusedGATConv", "fused_gat"),
    Patch(
        "pyg",
        "torch_geometric.nn.conv.fused_gat_conv",
        "FusedGATConv.__init__",
        "FusedGATConv",
        without_dgnn,
    ),
]
