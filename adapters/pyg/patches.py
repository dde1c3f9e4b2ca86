"""What is patched in PyG; read without importing ``torch_geometric``."""

from __future__ import annotations

from gnn_backend.dispatch import layer_patch

_CONV = "gnn_backend.adapters.pyg.conv"

PATCHES = [
    layer_patch(
        "pyg",
        "torch_geometric.nn.conv.gatv2_conv",
        "GATv2Conv",
        eligible=f"{_CONV}:eligible",
        fast=f"{_CONV}:fast",
        saves=f"{_CONV}:edgewise_bytes",
        static=f"{_CONV}:static_reason",
    ),
]
