"""What is patched in PyG; read without importing ``torch_geometric``."""

from __future__ import annotations

import dataclasses

from gnn_backend.adapters.operator import Operator
from gnn_backend.adapters.pyg.dgnn import without_dgnn
from gnn_backend.adapters.pyg.to_hetero import grouping
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


def _operator(
    module: str, attribute: str, name: str, ready: str, fast: str, functions: str = "utilities"
) -> Patch:
    """The patch of a function, or of an aggregation's ``forward``."""
    operator = Operator(f"pyg.{name}", f"{_ADAPTERS}.{functions}", ready, fast)
    return Patch("pyg", f"torch_geometric.{module}", attribute, name, operator)


PATCHES = [
    _layer("gatv2_conv", "GATv2Conv", "conv"),
    _layer("gat_conv", "GATConv", "gat"),
    _layer("transformer_conv", "TransformerConv", "transformer"),
    _layer("agnn_conv", "AGNNConv", "agnn"),
    _layer("supergat_conv", "SuperGATConv", "supergat"),
    _layer("fused_gat_conv", "FusedGATConv", "fused_gat"),
    _layer("gcn_conv", "GCNConv", "gcn"),
    _layer("sage_conv", "SAGEConv", "sage"),
    _layer("graph_conv", "GraphConv", "graph_conv"),
    _layer("gin_conv", "GINConv", "gin"),
    _layer("gin_conv", "GINEConv", "gine"),
    _layer("cheb_conv", "ChebConv", "cheb"),
    _layer("tag_conv", "TAGConv", "tag"),
    _layer("sg_conv", "SGConv", "sg"),
    _layer("appnp", "APPNP", "appnp"),
    _layer("arma_conv", "ARMAConv", "arma"),
    _layer("cluster_gcn_conv", "ClusterGCNConv", "cluster_gcn"),
    _layer("le_conv", "LEConv", "le"),
    _layer("pna_conv", "PNAConv", "pna"),
    _layer("gated_graph_conv", "GatedGraphConv", "gated_graph"),
    _layer("rgcn_conv", "RGCNConv", "rgcn"),
    _layer("rgcn_conv", "FastRGCNConv", "rgcn"),
    _layer("rgat_conv", "RGATConv", "rgat"),
    _layer("hgt_conv", "HGTConv", "hgt"),
    layer_patch(
        "pyg",
        "torch_geometric.nn.dense.linear",
        "HeteroLinear",
        eligible=f"{_ADAPTERS}.hetero_linear:eligible",
        fast=f"{_ADAPTERS}.hetero_linear:fast",
        static=f"{_ADAPTERS}.hetero_linear:static_reason",
    ),
    layer_patch(
        "pyg",
        "torch_geometric.nn.dense.linear",
        "HeteroDictLinear",
        eligible=f"{_ADAPTERS}.hetero_linear:dict_eligible",
        fast=f"{_ADAPTERS}.hetero_linear:dict_fast",
        static=f"{_ADAPTERS}.hetero_linear:dict_static_reason",
    ),
    layer_patch(
        "pyg",
        "torch_geometric.nn.conv.hetero_conv",
        "HeteroConv",
        eligible=f"{_ADAPTERS}.hetero_conv:eligible",
        fast=f"{_ADAPTERS}.hetero_conv:fast",
        static=f"{_ADAPTERS}.hetero_conv:static_reason",
    ),
    Patch(
        "pyg",
        "torch_geometric.nn.to_hetero_transformer",
        "ToHeteroTransformer.transform",
        "to_hetero",
        grouping,
    ),
    Patch(
        "pyg",
        "torch_geometric.nn.conv.fused_gat_conv",
        "FusedGATConv.__init__",
        "FusedGATConv",
        without_dgnn,
    ),
    dataclasses.replace(
        layer_patch(
            "pyg",
            "torch_geometric.nn.conv.message_passing",
            "MessagePassing",
            eligible=f"{_ADAPTERS}.propagation:eligible",
            fast=f"{_ADAPTERS}.propagation:fast",
            saves=f"{_ADAPTERS}.propagation:edgewise_bytes",
            static=f"{_ADAPTERS}.propagation:static_reason",
            method="propagate",
        ),
        generated=("propagate", "_jinja_propagate"),
    ),
    _operator("utils._scatter", "scatter", "scatter", "scatter_ready", "scatter"),
    _operator("utils._softmax", "softmax", "softmax", "softmax_ready", "softmax"),
    _operator("utils._segment", "segment", "segment", "segment_ready", "segment"),
    _operator("utils._spmm", "spmm", "spmm", "spmm_ready", "spmm", "products"),
    *(
        _operator(f"nn.aggr.{module}", f"{name}.forward", name, "module_ready", "aggregation")
        for module, name in (
            ("basic", "VarAggregation"),
            ("basic", "StdAggregation"),
            ("basic", "SoftmaxAggregation"),
            ("basic", "PowerMeanAggregation"),
            ("multi", "MultiAggregation"),
        )
    ),
]
