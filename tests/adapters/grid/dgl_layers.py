"""DGL's attention layers: the arguments that the grid varies, and a layer with its inputs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import gnn_backend
from tests.adapters.grid.sample import GRAPHS, Given, Reference, graph_edges
from tests.adapters.pyg.helpers import normal

WIDTH, EDGE_WIDTH = 6, 3
STRUCTURES = ("homogeneous", "batched", "square-slice", "slice", "block")

#: (attn_drop, training, get_attention), together as kernels are compiled for what is given.
EDGE_WISE = [(0.4, False, False), (0.4, True, True), (0.0, True, True), (0.4, True, False)]
GRAPH: dict[str, list[Any]] = {
    "structure": list(STRUCTURES),
    "graph": list(GRAPHS),
    "idtype": [torch.int64, torch.int32],
    "feat": ["tensor", "pair"],
    "dtype": [torch.float32, torch.bfloat16],
}
SHAPES: dict[str, list[Any]] = GRAPH | {
    "in_feats": ["int", "pair", "unequal"],
    "sizes": [(3, 4), (1, 7), (3, 1)],  # num_heads, out_feats
    "allow_zero_in_degree": [True, False],
}
ATTENTION: dict[str, list[Any]] = SHAPES | {
    "edge_wise": EDGE_WISE,
    "feat_drop": [0.0, 0.5],
    "negative_slope": [0.2, 0.0, 1.5],
    "residual": [False, True, "identity"],
    "activation": [None, torch.tanh],
    "bias": [True, False],
}
CHOICES: dict[str, dict[str, list[Any]]] = {
    "GATConv": ATTENTION,
    "GATv2Conv": ATTENTION | {"share_weights": [False, True]},
    "EdgeGATConv": ATTENTION | {"residual": [False, True]},
    "DotGatConv": SHAPES | {"edge_wise": [(0.0, True, False), (0.0, True, True)]},
    "AGNNConv": GRAPH | {"learn_beta": [True, False]},
    "attention_pattern": GRAPH | {
        "feat": ["pair"],
        "sizes": SHAPES["sizes"],
        "written": ["functions", "messages"],
    },
}  # fmt: skip
_CALLED = ("structure", "graph", "idtype", "feat", "dtype", "in_feats", "sizes", "edge_wise",
           "residual")  # fmt: skip


def allowed(layer: str, c: dict[str, Any]) -> bool:
    """Whether stock takes the combination, and computes what it says."""
    two_ended = c["structure"] in ("slice", "block")
    if c["feat"] == "tensor":
        return c["structure"] != "slice" and c.get("in_feats", "int") == "int"
    if layer == "DotGatConv" and c["in_feats"] == "int":
        return False
    # Where both ends share a frame, stock writes both ends' features under one name.
    return two_ended or layer not in ("DotGatConv", "AGNNConv")


def drops(c: dict[str, Any]) -> int:
    """How many masks a call draws."""
    attn_drop, training, _ = c.get("edge_wise", (0.0, False, False))
    return int(attn_drop > 0 and training)


def sample(layer: str, c: dict[str, Any], device: str) -> Given:
    """The layer of a combination with its arguments; on CUDA also the same on the CPU."""
    module, (graph, *tables) = _layer(layer, c), _inputs(layer, c)
    kwargs = {"get_attention": c["edge_wise"][2]} if "edge_wise" in c else {}
    if device == "cpu":
        return Given(module, (graph, *tables), kwargs)
    reference = Reference(module, (graph, *tables), kwargs)
    with gnn_backend.enabled(hosts="dgl"):
        there = (_made(c, device), *(_to(table, device) for table in tables))
    return Given(_layer(layer, c).to(device), there, kwargs, reference)


def _to(table: Any, device: str) -> Any:
    return tuple(t.to(device) for t in table) if type(table) is tuple else table.to(device)


def _widths(layer: str, c: dict[str, Any]) -> tuple[int, int]:
    """Widths of the sources' and of the destinations' features."""
    heads, out_feats = c.get("sizes", (1, WIDTH))
    width = heads * out_feats if c.get("residual") == "identity" else WIDTH
    return width + 2 * (c.get("in_feats") == "unequal"), width


def _layer(layer: str, c: dict[str, Any]) -> torch.nn.Module:
    from dgl import nn

    if layer == "attention_pattern":
        return Pattern(c["written"])
    options = {name: value for name, value in c.items() if name not in _CALLED}
    if layer == "AGNNConv":
        return nn.AGNNConv(0.7, **options, allow_zero_in_degree=True).to(c["dtype"])
    wide, width = _widths(layer, c)
    options["num_heads"], options["out_feats"] = c["sizes"]
    if layer != "DotGatConv":
        options["attn_drop"] = c["edge_wise"][0]
        options["residual"] = bool(c["residual"])
    if layer == "EdgeGATConv":
        options["edge_feats"] = EDGE_WIDTH
    torch.manual_seed(1)
    conv = getattr(nn, layer)(width if c["in_feats"] == "int" else (wide, width), **options)
    return conv.to(c["dtype"]).train(c["edge_wise"][1])


def _inputs(layer: str, c: dict[str, Any]) -> tuple[Any, ...]:
    graph, (wide, width), dtype = _made(c), _widths(layer, c), c["dtype"]
    num_src, num_dst = graph.num_src_nodes(), graph.num_dst_nodes()
    if layer == "attention_pattern":
        return (graph, *(normal(rows, *c["sizes"], seed=k, dtype=dtype)
                         for k, rows in enumerate((num_dst, num_src, num_src))))  # fmt: skip
    feat: Any = normal(num_src, wide, dtype=dtype)
    if c["feat"] == "pair":
        feat = (feat, normal(num_dst, width, seed=1, dtype=dtype))
    if layer == "EdgeGATConv":
        return graph, feat, normal(graph.num_edges(), EDGE_WIDTH, seed=2, dtype=dtype)
    return graph, feat


def _made(c: dict[str, Any], device: str = "cpu") -> Any:
    """A graph of 14 sources and 14 or 9 destinations, made on the CPU and moved."""
    import dgl

    structure, idtype = c["structure"], c["idtype"]
    num_src, num_dst = 14, 9 if structure in ("slice", "block") else 14
    pairs = graph_edges(c["graph"], num_src, num_dst)
    if not c.get("allow_zero_in_degree", True):
        every = torch.arange(num_dst)
        pairs = torch.cat([pairs, torch.stack([(every * 3) % num_src, every])], 1)
    ends = tuple(pairs.to(idtype))
    if structure == "homogeneous":
        return dgl.graph(ends, num_nodes=num_src).to(device)
    if structure == "batched":
        loops = tuple(torch.arange(5, dtype=idtype).repeat(2, 1))
        both = [dgl.graph(ends, num_nodes=num_src), dgl.graph(loops, num_nodes=5)]
        return dgl.batch(both).to(device)
    if structure == "block":
        return dgl.create_block(ends, num_src_nodes=num_src, num_dst_nodes=num_dst).to(device)
    end = "user" if structure == "square-slice" else "item"
    other = tuple(torch.tensor([[0, 1], [1, 1]], dtype=idtype))
    relations = {("user", "sees", end): ends, ("item", "knows", "user"): other}
    return dgl.heterograph(relations, {"user": num_src, "item": 9}).to(device)["sees"]


class Pattern(torch.nn.Module):
    """Attention in three calls of DGL, as functions or as messages."""

    def __init__(self, written: str) -> None:
        super().__init__()
        self.written = written

    def forward(self, graph: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        import dgl

        scale = 1 / math.sqrt(key.shape[-1])
        if self.written == "functions":
            scores = dgl.ops.u_dot_v(graph, key, query) * scale
            return dgl.ops.u_mul_e_sum(graph, value, dgl.ops.edge_softmax(graph, scores))
        fn = dgl.function
        with graph.local_scope():
            graph.srcdata["k"], graph.srcdata["v"], graph.dstdata["q"] = key, value, query
            graph.apply_edges(fn.v_dot_u("q", "k", "s"))
            graph.edata["w"] = dgl.ops.edge_softmax(graph, graph.edata.pop("s") * scale)
            graph.update_all(fn.u_mul_e("v", "w", "m"), fn.sum("m", "out"))
            return graph.dstdata["out"]
