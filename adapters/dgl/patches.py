"""What is patched in DGL; read without importing ``dgl``."""

from __future__ import annotations

from gnn_backend.adapters.dgl.dispatch import DGLDispatcher
from gnn_backend.adapters.dgl.graph import sharing_with_parent
from gnn_backend.adapters.dgl.residence import patch as residence
from gnn_backend.adapters.operator import Operator
from gnn_backend.patching import Patch

_ADAPTERS = "gnn_backend.adapters.dgl"


def _layer(module: str, layer: str, adapter: str, *, saves: bool = True, one_of: str = "") -> Patch:
    """The patch of a layer whose adapter has the usual functions.

    ``saves`` says whether stock holds edge-wise tensors, of which the adapter knows the bytes;
    ``one_of`` what the functions' names begin with, where a module is the adapter of several.
    """
    return Patch(
        "dgl",
        f"dgl.nn.pytorch.conv.{module}",
        f"{layer}.forward",
        layer,
        DGLDispatcher(
            f"dgl.{layer}",
            eligible=f"{_ADAPTERS}.{adapter}:{one_of}eligible",
            fast=f"{_ADAPTERS}.{adapter}:{one_of}fast",
            saves=f"{_ADAPTERS}.{adapter}:{one_of}edgewise_bytes" if saves else None,
            static=f"{_ADAPTERS}.{adapter}:{one_of}static_reason",
        ),
    )


def _linear(module: str, layer: str, *, one_of: str = "") -> Patch:
    """The patch of a linear map by type, which knows no graph."""
    functions = f"{_ADAPTERS}.linear:{one_of}"
    dispatcher = DGLDispatcher(
        f"dgl.{layer}",
        eligible=f"{functions}eligible",
        fast=f"{functions}fast",
        static=f"{functions}static_reason",
    )
    return Patch("dgl", f"dgl.nn.pytorch.{module}", f"{layer}.forward", layer, dispatcher)


def _readout(module: str, name: str, *, leads_on: bool = False) -> Patch:
    """The patch of a function of segments of rows, left to DGL where it has no kernel."""
    functions = f"{_ADAPTERS}.readout"
    operator = Operator("dgl.readout", functions, f"{name}_ready", name, counts=not leads_on)
    return Patch("dgl", module, name, "readout", operator)


PATCHES = [
    _layer("gatv2conv", "GATv2Conv", "conv"),
    _layer("gatconv", "GATConv", "gat"),
    _layer("edgegatconv", "EdgeGATConv", "edge_gat"),
    _layer("dotgatconv", "DotGatConv", "dot_gat"),
    _layer("agnnconv", "AGNNConv", "agnn"),
    _layer("graphconv", "GraphConv", "graph_conv", saves=False),
    _layer("graphconv", "EdgeWeightNorm", "edge_weight_norm", saves=False),
    _layer("sageconv", "SAGEConv", "sage", saves=False),
    _layer("ginconv", "GINConv", "gin", saves=False),
    _layer("gineconv", "GINEConv", "gine"),
    _layer("tagconv", "TAGConv", "filters", saves=False, one_of="tag_"),
    _layer("sgconv", "SGConv", "filters", saves=False, one_of="sg_"),
    _layer("appnpconv", "APPNPConv", "filters", saves=False, one_of="appnp_"),
    _layer("chebconv", "ChebConv", "cheb", saves=False),
    _layer("pnaconv", "PNAConv", "pna"),
    _layer("gatedgraphconv", "GatedGraphConv", "gated_graph"),
    _layer("relgraphconv", "RelGraphConv", "rel_graph_conv"),
    _layer("hgtconv", "HGTConv", "hgt"),
    _linear("linear", "TypedLinear"),
    _linear("hetero", "HeteroLinear", one_of="hetero_"),
    Patch(
        "dgl",
        "dgl.nn.pytorch.hetero",
        "HeteroGraphConv.forward",
        "HeteroGraphConv",
        DGLDispatcher(
            "dgl.HeteroGraphConv",
            eligible=f"{_ADAPTERS}.hetero_conv:eligible",
            fast=f"{_ADAPTERS}.hetero_conv:fast",
            static=f"{_ADAPTERS}.hetero_conv:static_reason",
        ),
    ),
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
    _readout("dgl.ops.segment", "segment_reduce"),
    _readout("dgl.ops.segment", "segment_softmax"),
    _readout("dgl.readout", "readout_nodes", leads_on=True),
    _readout("dgl.readout", "readout_edges", leads_on=True),
    *residence.PATCHES,
]
