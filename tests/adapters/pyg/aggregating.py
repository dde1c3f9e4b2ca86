"""The aggregating layers by pairwise combinations of their arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch_geometric.nn as nn
from torch_geometric import EdgeIndex
from torch_geometric.utils import degree

from tests.adapters.grid.covering import pairwise
from tests.adapters.pyg.helpers import edges, normal

WIDTH = 6
SIZES = {"one": (12, 12), "pair": (12, 12), "wide": (9, 14), "tall": (14, 9), "no dst": (14, 9)}
NAMED = ["sum", "mean", "max", "min", "mul", "var", "std", "softmax", "powermean"]
LISTS = [["mean", "max", "std"], ["softmax", "min", "powermean"]]
FLOWS = ["source_to_target", "target_to_source"]
AGGR = [*NAMED, *LISTS]

#: Arguments of calls rather than of layers.
CALLED = ("form", "nodes", "weight", "training", "size", "batch", "lambda_max", "hidden")


class Layer(NamedTuple):
    """How one layer is made, and what its arguments can be."""

    make: Callable[..., torch.nn.Module]
    choices: Mapping[str, Sequence[Any]]
    edge_width: int | None = None  # of edge features


SQUARE: dict[str, Sequence[Any]] = {"form": ["list", "sorted"], "flow": FLOWS}
PAIRED: dict[str, Sequence[Any]] = {**SQUARE, "nodes": [*SIZES], "size": [False, True]}
WEIGHT: dict[str, Sequence[Any]] = {"weight": [None, "constant", "learned"]}
BIAS: dict[str, Sequence[Any]] = {"bias": [True, False], "out": [4, 9]}


def _sized(cls: Any, out: int = 4, **options: Any) -> Any:
    return cls(WIDTH, out, **options)


def _graph_conv(out: int = 4, **options: Any) -> Any:
    return nn.GraphConv(WIDTH, out, **options)


def _sage(**options: Any) -> Any:
    return nn.SAGEConv(WIDTH, options.pop("out", 4), **options)


def _gin(cls: Any, hidden: int = 5, train_eps: bool = False, **options: Any) -> Any:
    first = torch.nn.Linear(WIDTH, hidden)
    layers = torch.nn.Sequential(first, torch.nn.ReLU(), torch.nn.Linear(hidden, 4))
    return cls(layers, train_eps=train_eps, eps=0.3, **options)


def _pna(towers: int = 1, divide_input: bool = False, **options: Any) -> Any:
    histogram = torch.bincount(degree(edges(12, 12)[1], 12).long())
    options.setdefault("aggregators", ["mean", "min", "max", "std"])
    options.setdefault("scalers", ["identity", "amplification", "attenuation"])
    return nn.PNAConv(WIDTH, 4, deg=histogram, towers=towers, divide_input=divide_input, **options)


_of = functools.partial
LAYERS: dict[str, Layer] = {
    "GCNConv": Layer(
        _of(_sized, nn.GCNConv),
        SQUARE | WEIGHT | BIAS
        | {"improved": [False, True], "cached": [False, True], "normalize": [True, False],
           "add_self_loops": [None, False], "aggr": ["add", "mean", "max", "std"]},
    ),
    "SAGEConv": Layer(
        _sage,
        PAIRED | BIAS
        | {"aggr": AGGR, "normalize": [False, True], "root_weight": [True, False],
           "project": [False, True]},
    ),
    # Sorted edges are another product in PyG, which is there only if the first layer made had it.
    "GraphConv": Layer(_graph_conv, PAIRED | WEIGHT | BIAS | {"aggr": NAMED, "form": ["list"]}),
    "GINConv": Layer(
        _of(_gin, nn.GINConv), PAIRED | {"train_eps": [False, True], "aggr": ["add", "max"]}
    ),
    "GINEConv": Layer(
        _of(_gin, nn.GINEConv),
        PAIRED | {"train_eps": [False, True], "edge_dim": [None, 3], "aggr": ["add", "max", "std"]},
        edge_width=3,
    ),
    "ChebConv": Layer(
        _of(_sized, nn.ChebConv),
        SQUARE | WEIGHT | BIAS
        | {"K": [2, 4], "normalization": ["sym", "rw", None], "batch": [False, True],
           "lambda_max": [None, 1.5, "tensor"]},
    ),
    "TAGConv": Layer(
        _of(_sized, nn.TAGConv), SQUARE | WEIGHT | BIAS | {"K": [1, 3], "normalize": [True, False]}
    ),
    "SGConv": Layer(
        _of(_sized, nn.SGConv),
        SQUARE | WEIGHT | BIAS
        | {"K": [1, 3], "cached": [False, True], "add_self_loops": [True, False]},
    ),
    "APPNP": Layer(
        _of(nn.APPNP, alpha=0.2),
        SQUARE | WEIGHT
        | {"K": [1, 3], "dropout": [0.0, 0.5], "training": [True, False],
           "cached": [False, True], "add_self_loops": [True, False], "normalize": [True, False]},
    ),
    "ARMAConv": Layer(
        _of(_sized, nn.ARMAConv),
        SQUARE | WEIGHT | BIAS
        | {"num_stacks": [1, 2], "num_layers": [1, 3], "shared_weights": [False, True],
           "act": [torch.nn.ReLU(), None, torch.nn.Softmax(dim=-1)], "dropout": [0.0, 0.4],
           "training": [True, False]},
    ),
    "ClusterGCNConv": Layer(
        _of(_sized, nn.ClusterGCNConv), SQUARE | BIAS | {"diag_lambda": [0.0, 0.7]}
    ),
    "LEConv": Layer(
        _of(_sized, nn.LEConv), SQUARE | WEIGHT | BIAS | {"nodes": ["one", "pair", "wide", "tall"]}
    ),
    "PNAConv": Layer(
        _pna,
        SQUARE
        | {"towers": [1, 2], "divide_input": [False, True], "edge_dim": [None, 3],
           "post_layers": [1, 2], "train_norm": [False, True],
           "aggregators": [["mean", "min", "max", "std"], ["sum", "var"], ["max"]],
           "scalers": [["identity", "amplification", "attenuation"], ["linear"],
                       ["inverse_linear", "identity"]]},
        edge_width=3,
    ),
    "GatedGraphConv": Layer(
        _of(nn.GatedGraphConv, 8),
        SQUARE | WEIGHT
        | {"num_layers": [1, 3], "aggr": ["add", "mean", "max"], "bias": [True, False]},
    ),
}  # fmt: skip


def allowed(c: dict[str, Any]) -> bool:
    """Whether the stock layer takes a combination, in a form that is fused."""
    nodes = c.get("nodes", "one")
    if nodes == "no dst" and not c["size"]:
        return False  # only the edges would tell how many there are
    if c.get("flow") == "target_to_source" and nodes != "one":
        return False
    if c.get("normalize") is False and c.get("add_self_loops", False):
        return False
    if c.get("normalize") is False and c.get("cached"):
        return False
    if c.get("normalize") is False and c.get("dropout") and c.get("weight") is None:
        return False  # stock asks for weights to drop
    if c.get("batch") and c.get("lambda_max") != "tensor":
        return False
    if c.get("aggr") == "mul" and c.get("weight"):
        return True
    return not (c.get("cached") and c.get("weight") == "learned")


COMBINATIONS = [
    (name, c) for name, layer in LAYERS.items() for c in pairwise(layer.choices, allowed)
]


def build(name: str, c: dict[str, Any]) -> torch.nn.Module:
    layer = LAYERS[name]
    options = {k: v for k, v in c.items() if k not in CALLED}
    torch.manual_seed(1)
    module = layer.make(**options)
    for parameter in module.parameters():  # biases begin with 0
        with torch.no_grad():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.train(c.get("training", True))


def call(name: str, c: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    """Arguments of a call: features, edges and keywords."""
    nodes = c.get("nodes", "one")
    num_src, num_dst = SIZES[nodes]
    x: Any = normal(num_src, WIDTH, dtype=dtype)
    if nodes != "one":
        x = (x, None if nodes == "no dst" else normal(num_dst, WIDTH, seed=1, dtype=dtype))
    plain: Any = edges(num_src, num_dst)
    options: dict[str, Any] = {}
    count = plain.shape[1]
    if c.get("weight"):
        options["edge_weight"] = normal(count, seed=2, dtype=dtype).abs() + 0.1
    width = LAYERS[name].edge_width
    if width is not None and (name == "GINEConv" or c["edge_dim"]):
        own = width if c["edge_dim"] else WIDTH
        options["edge_attr"] = normal(count, own, seed=2, dtype=dtype)
    if c.get("form") == "sorted":
        by = "col" if c["flow"] == "source_to_target" else "row"
        plain, perm = EdgeIndex(plain, sparse_size=(num_src, num_dst)).sort_by(by)
        options = {k: v[perm] for k, v in options.items()}
    if c.get("batch"):
        options["batch"] = torch.arange(num_src) % 2
    if c.get("lambda_max") == "tensor":
        options["lambda_max"] = torch.tensor([1.7, 2.2] if c["batch"] else [1.7], dtype=dtype)
    elif c.get("lambda_max"):
        options["lambda_max"] = c["lambda_max"]
    if c.get("size"):
        options["size"] = (num_src, num_dst)
    return x, plain, options


def constants(c: dict[str, Any]) -> tuple[str, ...]:
    """Keywords that want no gradient though they are floating point."""
    fixed = ("lambda_max",) if c.get("lambda_max") == "tensor" else ()
    return (*fixed, "edge_weight") if c.get("weight") == "constant" else fixed


def identifier(value: Any) -> str:
    if isinstance(value, dict):
        return "-".join(str(v).replace(" ", "") for v in value.values())
    return str(value)
