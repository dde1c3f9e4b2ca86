"""The table of DGL's layers: how each is constructed, and what its forward takes.

A row names attributes of :class:`gnn_backend.bench.dgl_inputs.Inputs`, in the order of the
forward's arguments. Constructor arguments that are sizes are filled in by their name, see
``_SIZES``; others are given, as a value or as a function of the inputs. Dropout is off, since the
random numbers of devices differ.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import dgl
import torch
from dgl import nn as layers
from torch import nn

from gnn_backend.bench import dgl_models as models
from gnn_backend.bench.dgl_inputs import EDGE_DIM, TYPES, Inputs
from gnn_backend.errors import invalid

_SIZES = {
    "in_dim": "in_feats in_feat in_size in_node_feats node_in_feats input_feats input_d input_dim",
    "dim": "out_feats out_feat out_size output_feats output_d out_node_feats out_edge_feats "
    "hidden_feats hidden_size hidden_d head_size emb_dim embedding_dim d_head d_ff",
    "heads": "num_heads n_heads n_head",
}
_EDGE_SIZES = "edge_feats edge_feat_size in_edge_feats edge_in_feats feat_dim"
_TYPE_SIZES = "num_types num_rels num_ntypes num_etypes n_etypes max_node_type"

Run = Callable[..., Any]
Make = Callable[[Inputs], nn.Module]


@dataclasses.dataclass(frozen=True)
class Row:
    """One layer.

    Attributes
    ----------
    takes : str
        Names of inputs, separated by spaces; ``argument=name`` for one that goes by keyword.
    options : dict
        Constructor arguments beside sizes; a function gets the inputs.
    make : callable or None
        Makes the layer from the inputs, where the constructor is no matter of names.
    run : callable or None
        Calls it, as ``run(layer, *arguments)``, where ``forward`` is not what is to be compared.
    rematerializes : bool
        Whether gradients have to be taken by ``backward()``.
    """

    takes: str
    options: Mapping[str, Any]
    make: Make | None = None
    run: Run | None = None
    rematerializes: bool = False

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """Pairs of a keyword, empty for what goes by position, and the name of an input."""
        split = [entry.rpartition("=") for entry in self.takes.split()]
        return [(keyword, name) for keyword, _, name in split]


def _row(takes: str, run: Run | None = None, make: Make | None = None, **options: Any) -> Row:
    return Row(takes, options, make, run)


def row(name: str) -> Row:
    """The row of a layer, a pattern, or of an operator named ``ops.NAME``.

    Raises
    ------
    InvalidArgument
        DGL has none of that name, or it is none that can be compared.
    """
    if name in NOT_COMPARED:
        raise invalid("layer", f"cannot be compared ({NOT_COMPARED[name]})", repr(name), _names())
    rows = {
        **LAYERS,
        **PATTERNS,
        **{f"ops.{operator}": found for operator, found in OPERATORS.items()},
    }
    if name not in rows:
        raise invalid("layer", "dgl has no such layer", repr(name), _names())
    return rows[name]


def _names() -> str:
    return f"one of {', '.join(sorted(LAYERS))}"


def construct(name: str, given: Inputs, **further: Any) -> nn.Module:
    """A layer as its row says, in float32 on the CPU.

    Parameters
    ----------
    name : str
    given : Inputs
    **further
        Constructor arguments that take the place of the row's.

    Raises
    ------
    InvalidArgument
        The constructor wants something that is neither a size nor in the row.
    """
    own = row(name)
    if own.make is not None:
        return own.make(given)
    cls: type[nn.Module] = getattr(layers, name)
    options = {key: _value(option, given) for key, option in {**own.options, **further}.items()}
    parameters = [p for p in inspect.signature(cls).parameters.values() if p.name not in options]
    sizes = _sizes(given)
    options |= {p.name: sizes[p.name] for p in parameters if p.name in sizes}
    needed = [p.name for p in parameters if p.default is p.empty and p.name not in options]
    if needed:
        raise invalid(name, "needs arguments that are no sizes", needed, "none such")
    return cls(**options)


def _value(option: Any, given: Inputs) -> Any:
    made = inspect.isfunction(option) or inspect.isclass(option)
    return option(given) if made else option


def _sizes(given: Inputs) -> dict[str, int]:
    found = {name: getattr(given, of) for of, names in _SIZES.items() for name in names.split()}
    found |= dict.fromkeys(_EDGE_SIZES.split(), EDGE_DIM)
    return found | dict.fromkeys(_TYPE_SIZES.split(), TYPES)


# ---------------------------------------------------------------------- what rows share

_ANY_DEGREE: dict[str, Any] = {"allow_zero_in_degree": True}
_TOWERS: dict[str, Any] = {
    "aggregators": ["mean", "max", "sum", "std"],
    "scalers": ["identity", "amplification"],
    "delta": 2.5,
}
_RADII: dict[str, Any] = {
    name: lambda _, value=value: torch.tensor(value)
    for name, value in {
        "interaction_cutoffs": [1.2, 1.5, 2.0],
        "rbf_kernel_means": [0.5, 1.0, 1.5],
        "rbf_kernel_scaling": [1.0, 2.0, 3.0],
        "features_to_use": [6.0, 7.0, 8.0],
    }.items()
}


def _linear(given: Inputs) -> nn.Module:
    return nn.Linear(given.in_dim, given.dim)


def _function(operator: Callable[..., Any], *names: str) -> Run:
    """A call of a function with the names of its operation after the first argument."""
    return lambda _, first, *further: operator(first, *names, *further)


def _edges(layer: nn.Module, *args: Any) -> torch.Tensor:
    """Ends of the edges of the graph that a layer makes, in a fixed order."""
    return torch.stack(layer(*args).edges(order="srcdst")).double()


def _on_a_copy(layer: nn.Module, graph: Any, x: torch.Tensor) -> torch.Tensor:
    """The layer takes away the memory of its input, and in backward that of its output."""
    return layer(graph, x.clone()).clone()


def _hetero_conv(given: Inputs) -> nn.Module:
    convs = {
        "ab": layers.GATv2Conv(given.in_dim, given.dim, given.heads),
        "ba": layers.GraphConv(given.in_dim, given.dim),
        "aa": layers.SAGEConv(given.in_dim, given.dim, "mean"),
    }
    return layers.HeteroGraphConv(convs)


def _by_type(size: str) -> Callable[[Inputs], dict[str, int]]:
    return lambda given: dict.fromkeys(
        "ab", given.data.num_nodes if size == "nodes" else given.in_dim
    )


# ---------------------------------------------------------------------- the table

CONVOLUTIONS = {
    "AGNNConv": _row("graph x", **_ANY_DEGREE),
    "APPNPConv": _row("graph x edge_weight=weight", k=3, alpha=0.1),
    "AtomicConv": _row("graph atoms distances", **_RADII),
    "CFConv": _row("graph x edge_x"),
    "ChebConv": _row("graph x lambda_max=bounds", k=3),
    "DGNConv": _row("graph x edge_x eigenvectors", **_TOWERS | {
        "aggregators": ["mean", "dir1-av", "dir2-dx"]}),
    "DenseChebConv": _row("adjacency x lambda_max=bound", k=3),
    "DenseGraphConv": _row("adjacency x"),
    "DenseSAGEConv": _row("adjacency x"),
    "DotGatConv": _row("graph x", **_ANY_DEGREE),
    "EGATConv": _row("looped x looped_edge_x"),
    "EGNNConv": _row("graph x coord edge_x"),
    "EdgeConv": _row("graph x", **_ANY_DEGREE),
    "EdgeGATConv": _row("graph x edge_x", **_ANY_DEGREE),
    "EdgeWeightNorm": _row("graph weight"),
    "GATConv": _row("graph x", **_ANY_DEGREE),
    "GATv2Conv": _row("graph x", **_ANY_DEGREE),
    "GCN2Conv": _row("graph x x0 edge_weight=weight", layer=1, **_ANY_DEGREE),
    "GINConv": _row("graph x edge_weight=weight", apply_func=_linear, learn_eps=True),
    "GINEConv": _row("graph x wide_edge_x", apply_func=_linear, learn_eps=True),
    "GMMConv": _row("graph x pseudo", dim=2, n_kernels=3, **_ANY_DEGREE),
    "GatedGCNConv": _row("graph x edge_x"),
    "GatedGraphConv": _row("graph x etypes", n_steps=2, out_feats=lambda g: max(g.in_dim, g.dim)),
    "GraphConv": _row("graph x edge_weight=weight", **_ANY_DEGREE),
    "GroupRevRes": Row("graph x", {}, lambda g: layers.GroupRevRes(
        layers.SAGEConv(g.in_dim // 2, g.in_dim // 2, "mean")), _on_a_copy, rematerializes=True),
    "HGTConv": _row("graph x ntypes etypes", dropout=0.0),
    "NNConv": _row("graph x edge_x", edge_func=lambda g: nn.Linear(EDGE_DIM, g.in_dim * g.dim)),
    "PNAConv": _row("graph x edge_x", **_TOWERS),
    "RelGraphConv": _row("graph x etypes"),
    "SAGEConv": _row("graph x edge_weight=weight", aggregator_type="pool"),
    "SGConv": _row("graph x edge_weight=weight", k=2, **_ANY_DEGREE),
    "TAGConv": _row("graph x edge_weight=weight", k=2),
    "TWIRLSConv": _row("graph x", prop_step=4, attention=True),
    "TWIRLSUnfoldingAndAttention": _row(
        "graph x", models.on_a_view, d=lambda g: g.in_dim, alp=0.0, lam=1.0, prop_step=4,
        attn_aft=2),
}  # fmt: skip

READOUTS = {
    "AvgPooling": _row("batch x"),
    "GlobalAttentionPooling": _row("batch x", gate_nn=lambda g: nn.Linear(g.in_dim, 1)),
    "MaxPooling": _row("batch x"),
    "Set2Set": _row("batch x", n_iters=2, n_layers=1),
    "SetTransformerDecoder": _row("batch x", d_model=lambda g: g.in_dim, n_layers=1, k=2),
    "SetTransformerEncoder": _row("batch x", d_model=lambda g: g.in_dim, block_type="isab", m=2),
    "SortPooling": _row("batch x", k=3),
    "SumPooling": _row("batch x"),
    "WeightAndSum": _row("batch x"),
}

TRANSFORMERS = {
    "BiasedMHA": _row("sequence bias", feat_size=lambda g: g.width, attn_drop=0.0),
    "DegreeEncoder": _row("degrees", max_degree=8),
    "EGTLayer": _row("sequence pairs", feat_size=lambda g: g.width, num_virtual_nodes=1),
    "GraphormerLayer": _row(
        "sequence bias", feat_size=lambda g: g.width, dropout=0.0, attn_dropout=0.0),
    # Evaluated, for its dropout cannot be set. Of its other model stock has no gradient.
    "LapPosEncoder": _row("eigenvalues eigenvectors", make=lambda g: layers.LapPosEncoder(
        "Transformer", 2, 4, g.width, g.heads, num_post_layer=1).eval()),
    "PathEncoder": _row("hops paths", max_len=5),
    "SpatialEncoder": _row("hops", max_dist=5),
    "SpatialEncoder3d": _row("positions kinds", num_kernels=4),
}  # fmt: skip

OTHERS = {
    "DeepWalk": _row("walks", g=lambda g: g.graph, walk_length=6, window_size=2, sparse=False),
    "EdgePredictor": _row("heads_of_edges tails_of_edges", op="cat"),
    "HeteroEmbedding": _row("ids_by_type", num_embeddings=_by_type("nodes")),
    "HeteroGraphConv": _row("relations x_by_type", make=_hetero_conv),
    "HeteroLinear": _row("x_by_type", in_size=_by_type("features")),
    "JumpingKnowledge": _row("layers", mode="lstm", num_layers=2),
    "KNNGraph": _row("coord", _edges, k=3),
    "LabelPropagation": _row("graph labels mask", k=3, alpha=0.5),
    "MetaPath2Vec": _row("centers contexts negatives", make=models.meta_path),
    "RadiusGraph": _row("coord", _edges, r=0.3),
    "SegmentedKNNGraph": _row("coord node_counts", _edges, k=3),
    "Sequential": _row("graph x", make=lambda g: layers.Sequential(
        layers.TAGConv(g.in_dim, g.dim), layers.SAGEConv(g.dim, g.dim, "mean"))),
    "TransE": _row("heads_of_edges tails_of_edges etypes", feats=lambda g: g.in_dim),
    "TransR": _row("heads_of_edges tails_of_edges etypes", rfeats=lambda g: g.dim,
                   nfeats=lambda g: g.in_dim),
    "TypedLinear": _row("x ntypes"),
    "WeightBasis": _row("", shape=lambda g: (g.in_dim, g.dim), num_bases=2, num_outputs=TYPES),
}  # fmt: skip

EXPLAINERS = {
    "GNNExplainer": _row("graph x", models.explain_graph, model=models.Classifier,
                         num_hops=1, num_epochs=3, log=False),
    "HeteroGNNExplainer": _row("relations x_by_type", models.explain_graph,
                               model=models.HeteroClassifier, num_hops=1, num_epochs=3, log=False),
    "HeteroPGExplainer": _row("small_relations small_x_by_type", models.explain_graph,
                              model=models.HeteroClassifier, num_features=lambda g: g.dim),
    "PGExplainer": _row("both_ways x", models.explain_graph, model=models.Classifier,
                        num_features=lambda g: g.dim),
}  # fmt: skip

OPERATORS = {
    "edge_softmax": _row("graph logits", _function(dgl.ops.edge_softmax), nn.Identity),
    "gather_mm": _row("x ntypes", lambda own, x, types: dgl.ops.gather_mm(
        x, own.weight, idx_b=types), models.TypedWeights),
    "gsddmm": _row("graph x x0", _function(dgl.ops.gsddmm, "dot"), nn.Identity),
    "gspmm": _row("graph x wide_edge_x", _function(dgl.ops.gspmm, "mul", "max"), nn.Identity),
    "segment_mm": _row("x type_counts", lambda own, x, counts: dgl.ops.segment_mm(
        x, own.weight, counts), models.TypedWeights),
    "segment_reduce": _row("segments x", _function(dgl.ops.segment_reduce), nn.Identity),
    "segment_softmax": _row("segments x", _function(dgl.ops.segment_softmax), nn.Identity),
}  # fmt: skip
"""Functions of ``dgl.ops``, by name."""

PATTERNS = {
    "attention_pattern": _row("graph x x0", models.attention_in_three_calls, nn.Identity),
}
"""What users write of several functions of DGL, by the name that profiles show."""

NOT_COMPARED = {
    **dict.fromkeys(
        ("CuGraphGATConv", "CuGraphRelGraphConv", "CuGraphSAGEConv"),
        "needs pylibcugraphops, which replaces DGL's operators and has no CPU version",
    ),
    "NodeEmbedding": "a table of trainable numbers that is shared by processes; no layer",
    **dict.fromkeys(
        ("SubgraphX", "HeteroSubgraphX"),
        "a search whose own code fails on NumPy 2, which it asks for the int of an array",
    ),
    **dict.fromkeys(
        ("knn_graph", "segmented_knn_graph", "radius_graph"),
        "a function of dgl that makes a graph; its layer of the same name is compared",
    ),
    "pairwise_squared_distance": "a formula on dense tensors",
    "expand_as_pair": "a helper for those who write layers",
    "edge_softmax": "an operator; compared as dgl.ops.edge_softmax",
}
"""What ``dgl.nn`` exports and is not in the table, each with the reason."""

LAYERS = {**CONVOLUTIONS, **READOUTS, **TRANSFORMERS, **OTHERS, **EXPLAINERS}
"""Rows of all layers, by the class's name."""
