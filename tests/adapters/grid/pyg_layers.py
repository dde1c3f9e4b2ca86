"""PyG's attention layers: the arguments that the grid varies, and a layer with its inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gnn_backend
from tests.adapters.grid.sample import GRAPHS, Given, Reference, graph_edges
from tests.adapters.pyg.helpers import normal

FEATURES = (6, 5)  # of sources and, for a pair input, of destinations
NODES = {"one": (12, 12), "pair": (12, 12), "wide": (9, 14), "tall": (14, 9), "no dst": (14, 9)}
LOOPS = ("mean", "max", "tensor")  # fill values that need edge features or the ends of loops

#: (edge_dim, dropout, training, return_attention_weights). Kernels are compiled for what is given,
#: so these vary together: every two of edge features, active dropout and weights occur.
EDGE_WISE = [
    (None, 0.4, False, None),
    (None, 0.4, True, True),
    (3, 0.0, True, False),
    (1, 0.4, True, None),
]
GRAPH: dict[str, list[Any]] = {
    "graph": list(GRAPHS),
    "form": ["list", "int32", "sorted", "csr", "coo"],
    "flow": ["source_to_target", "target_to_source"],
    "dtype": [torch.float32, torch.bfloat16],
}
COMMON: dict[str, list[Any]] = GRAPH | {
    "nodes": ["one", "pair", "wide", "tall"],
    "sizes": [(3, 4), (1, 7), (3, 1)],  # heads, out_channels
    "concat": [True, False],
    "edge_wise": EDGE_WISE,
    "bias": [True, False],
}
LOOPED: dict[str, list[Any]] = COMMON | {
    "negative_slope": [0.2, 0.0, 1.5],
    "add_self_loops": [True, False],
    "fill_value": ["mean", "max", 0.5, "tensor"],
    "residual": [True, False],
}
CHOICES: dict[str, dict[str, list[Any]]] = {
    "GATConv": LOOPED | {"nodes": list(NODES), "size": [False, True]},
    "GATv2Conv": LOOPED | {"fill_value": ["mean", 0.5, "tensor"], "share_weights": [True, False],
                           "aggr": ["add", "sum"]},
    "TransformerConv": COMMON | {"beta": [True, False], "root_weight": [True, False]},
    "SuperGATConv": GRAPH | {
        "form": ["list", "sorted"],
        "flow": ["source_to_target"],
        "sizes": COMMON["sizes"],
        "concat": [True, False],
        "edge_wise": [(None, 0.4, False, None), (None, 0.4, True, None)],
        "negative_slope": [0.2, 1.5],
        "add_self_loops": [True, False],
        "bias": [True, False],
        "attention_type": ["MX", "SD"],
    },
    "AGNNConv": GRAPH | {
        "width": [6, 1],
        "requires_grad": [True, False],
        "add_self_loops": [True, False],
    },
    "FusedGATConv": {
        "graph": list(GRAPHS),
        "dtype": GRAPH["dtype"],
        "sizes": COMMON["sizes"],
        "concat": [True, False],
        "bias": [True, False],
        "negative_slope": [0.2, 0.0],
        "edge_wise": EDGE_WISE[:1],
    },
}  # fmt: skip
_CALLED = ("graph", "form", "nodes", "dtype", "sizes", "edge_wise", "size", "width")


def allowed(layer: str, c: dict[str, Any]) -> bool:
    """Whether stock takes the combination, and computes what it says."""
    nodes, loops, fill = c.get("nodes", "one"), c.get("add_self_loops"), c.get("fill_value")
    edge_dim, _, training, _ = c.get("edge_wise", EDGE_WISE[0])
    if c.get("form") in ("sorted", "csr", "coo") and training:
        # PyG has an order of its own for what belongs to edges; that of a sorted list needs
        # kernels of its own, without the numbers of edges.
        return False
    if c.get("form") in ("csr", "coo") and loops and fill in LOOPS:
        return False
    if loops and edge_dim and nodes == "wide" and fill in ("mean", "max"):
        return False  # PyG indexes its rows by the wrong end there
    if nodes == "no dst" and not (c["size"] and not c["residual"]):
        return False
    if c.get("flow") == "target_to_source":
        sparse = c["form"] in ("csr", "coo")
        return not sparse and nodes in ("one", "pair") and not c.get("size")
    return True


def drops(c: dict[str, Any]) -> int:
    """How many masks a call draws."""
    _, dropout, training, _ = c.get("edge_wise", EDGE_WISE[0])
    return int(dropout > 0 and training)


def sample(layer: str, c: dict[str, Any], device: str) -> Given:
    """The layer of a combination, its arguments, and the stock layer's where they differ."""
    if layer == "FusedGATConv":
        return _fused_gat(c, device)
    module = _layer(layer, c, device)
    x, edge_index, kwargs = _inputs(c, device)
    reference = None
    if c["form"] == "int32":  # torch's scatter differentiates 32-bit ids wrongly
        reference = Reference(_layer(layer, c, device), (x, edge_index.long()), kwargs)
    return Given(module, (x, edge_index), kwargs, reference)


def _widths(c: dict[str, Any]) -> tuple[int, int]:
    return FEATURES if not c.get("share_weights") else (FEATURES[0],) * 2


def _layer(layer: str, c: dict[str, Any], device: str) -> torch.nn.Module:
    from torch_geometric import nn

    options = {name: value for name, value in c.items() if name not in _CALLED}
    training = True
    sizes: tuple[Any, ...] = ()
    if layer != "AGNNConv":
        edge_dim, options["dropout"], training, _ = c["edge_wise"]
        options["heads"], out_channels = c["sizes"]
        nodes, widths = c.get("nodes", "one"), _widths(c)
        sizes = (widths[0] if nodes == "one" else widths, out_channels)
        if layer not in ("SuperGATConv", "FusedGATConv"):
            options["edge_dim"] = edge_dim
        if options.get("fill_value") == "tensor":
            fill = normal(edge_dim or 1, seed=5, dtype=c["dtype"])
            options["fill_value"] = fill.to(device)
    torch.manual_seed(1)
    module = getattr(nn, layer)(*sizes, **options)
    if layer == "AGNNConv":
        module.beta.data.fill_(0.7)
    return module.to(device, c["dtype"]).train(training)


def _inputs(c: dict[str, Any], device: str) -> tuple[Any, Any, dict[str, Any]]:
    (num_src, num_dst), widths = NODES[c.get("nodes", "one")], _widths(c)
    dtype, edge_dim = c["dtype"], c["edge_wise"][0] if "edge_wise" in c else None

    def table(*shape: int, seed: int = 0) -> Tensor:
        return normal(*shape, seed=seed, dtype=dtype).to(device)

    x: Any = table(num_src, c.get("width", widths[0]))
    if c.get("nodes", "one") != "one":
        x = (x, None if c["nodes"] == "no dst" else table(num_dst, widths[1], seed=1))
    plain = graph_edges(c["graph"], num_src, num_dst).to(device)
    kwargs: dict[str, Any] = {}
    if edge_dim:
        kwargs["edge_attr"] = table(plain.shape[1], edge_dim, seed=2)
    if "edge_wise" in c and c["edge_wise"][3] is not None:
        kwargs["return_attention_weights"] = c["edge_wise"][3]
    if c.get("size"):
        kwargs["size"] = (num_src, num_dst)
    return x, _form(c, plain, num_src, num_dst), kwargs


def _form(c: dict[str, Any], plain: Tensor, num_src: int, num_dst: int) -> Any:
    from torch_geometric import EdgeIndex

    form = c["form"]
    if form == "int32":
        return plain.int()
    if form == "sorted":
        by = "col" if c["flow"] == "source_to_target" else "row"
        return EdgeIndex(plain, sparse_size=(num_src, num_dst)).sort_by(by)[0]
    if form == "list":
        return plain
    values = torch.ones(plain.shape[1], device=plain.device)
    sparse = torch.sparse_coo_tensor(plain.flip(0), values, (num_dst, num_src)).coalesce()
    return sparse.to_sparse_csr() if form == "csr" else sparse


def _fused_gat(c: dict[str, Any], device: str) -> Given:
    """Stock needs another package; its GATConv computes the same, rows attending to columns."""
    from torch_geometric.nn import FusedGATConv

    c = c | {"add_self_loops": False}
    with gnn_backend.enabled(hosts="pyg"):
        module = _layer("FusedGATConv", c, device)
    stock = _layer("GATConv", c | {"flow": "target_to_source"}, device)
    stock.load_state_dict(module.state_dict())
    num_src = NODES["one"][0]
    plain = graph_edges(c["graph"], num_src, num_src)
    x = normal(num_src, FEATURES[0], dtype=c["dtype"]).to(device)
    csr, csc, perm = FusedGATConv.to_graph_format(plain, size=(num_src, num_src))
    csr, csc = (tuple(t.to(device) for t in part) for part in (csr, csc))
    return Given(module, (x, csr, csc, perm.to(device)), {},
                 Reference(stock, (x, plain.to(device)), {}))  # fmt: skip
