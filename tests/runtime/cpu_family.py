"""The attention family on the CPU engine: operands, one call with all that it returns, its twin."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.ops.softmax_attention import attention_twin
from gnn_backend.ops.twins import Edges
from gnn_backend.runtime import cpu
from gnn_backend.runtime.launch import Cotangents, Saved
from gnn_backend.runtime.random import Dropout

SCALARS = {
    "gatv2": {"negative_slope": 0.2},
    "gat": {"negative_slope": 0.2},
    "dot": {"scale": 0.4},
    "supergat": {"negative_slope": 0.2, "scale": 0.3},
    "scaled_dot": {},
}


class Call(NamedTuple):
    """A call of the engine, with cotangents for all that it returns."""

    name: str
    graph: Graph
    operands: dict[str, Tensor]
    cotangents: dict[str, Tensor]
    dropout: Dropout | None = None

    def to(self, dtype: torch.dtype) -> Call:
        operands, cotangents = (
            {name: tensor.to(dtype) for name, tensor in tensors.items()}
            for tensors in (self.operands, self.cotangents)
        )
        return self._replace(operands=operands, cotangents=cotangents)


def make_call(
    name: str,
    graph: Graph,
    heads: int,
    width: int,
    features: int = 0,
    parts: tuple[str, ...] = (),
    dropout_p: float = 0.0,
    seed: int = 5,
) -> Call:
    """A float64 call. Parts: "rows", "terms", "shared" or "own" (features), "asked" (an edge
    query), "summed" (features are aggregated) and "attention" (its weights are returned)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    src, dst, edges = graph.num_src, graph.num_dst, graph.num_edges
    tables = {
        "gatv2": lambda: {
            "x_src": draw(src, heads, width),
            "x_dst": draw(dst, heads, width),
            "att": draw(heads, width) / width**0.5,
        },
        "gat": lambda: {
            "x_src": draw(src, heads, width),
            "el": draw(src, heads),
            "er": draw(dst, heads),
        },
        "supergat": lambda: {
            "x_src": draw(src, heads, width),
            "el": draw(src, heads),
            "x_dst": draw(dst, heads, width) / width**0.5,
            "er": draw(dst, heads),
        },
        "scaled_dot": lambda: {
            "x_src": draw(src, heads, width),
            "el": draw(src, heads),
            "q_dst": draw(dst, heads, width) / width**0.5,
            "er": draw(dst, heads),
        },
        "dot": lambda: {
            "k_src": draw(src, heads, width),
            "v_src": draw(src, heads, width),
            "q_dst": draw(dst, heads, width) / width**0.5,
        },
    }
    operands = tables[name]()
    cotangents = {"out": draw(dst, heads, width)}
    if "rows" in parts:
        operands["edge"] = draw(edges, heads, width)
    if "terms" in parts:
        operands["edge_logit" if name == "gat" else "edge_bias"] = draw(edges, heads)
    if "shared" in parts:
        operands["edge_features"] = draw(edges, features)
    if "own" in parts:
        operands["edge_features"] = draw(edges, heads, features)
    if "asked" in parts:
        operands["edge_query"] = draw(dst, heads, features) / features**0.5
    if "summed" in parts:
        cotangents["out_edge"] = draw(dst, heads, features)
    if "attention" in parts:
        cotangents["attention"] = draw(edges, heads)
    dropout = Dropout(dropout_p, 0x123456789ABCDEF0, 8) if dropout_p else None
    return Call(name, graph, operands, cotangents, dropout)


def engine_results(call: Call, needs: frozenset[str] | None = None) -> dict[str, Tensor]:
    """What the engine returns, and all gradients, by name."""
    head = (FUNCTORS[call.name], call.graph, call.operands, SCALARS[call.name])
    aggregate = "out_edge" in call.cotangents
    out, lse, out_edge = cpu.softmax_forward(*head, call.dropout, aggregate=aggregate)
    results = {"output": out}
    if out_edge is not None:
        results["output_edge"] = out_edge
    if "attention" in call.cotangents:
        results["attention"] = cpu.softmax_weights(*head, lse, call.dropout)
    saved, cotangents = Saved(out, lse, out_edge), Cotangents(**call.cotangents)
    needs = frozenset(call.operands) if needs is None else needs
    return results | cpu.softmax_backward(*head, saved, cotangents, needs, call.dropout)


def ends(graph: Graph) -> tuple[Tensor, Tensor]:
    """Source and destination of every edge, in the caller's order."""
    edges = Edges.of(graph)
    return edges.to_caller(edges.src), edges.to_caller(edges.dst)


def twin_results(call: Call) -> dict[str, Tensor]:
    """The same by plain torch and autograd, in float64."""
    operands = {n: t.detach().double().requires_grad_() for n, t in call.operands.items()}
    found = attention_twin(
        FUNCTORS[call.name],
        call.graph,
        operands,
        SCALARS[call.name],
        call.dropout,
        aggregate="out_edge" in call.cotangents,
    )
    results = {"output": found.out}
    if found.out_edge is not None:
        results["output_edge"] = found.out_edge
    if "attention" in call.cotangents:
        results["attention"] = found.attention
    cotangents = [
        call.cotangents[name].double()
        for name in ("out", "out_edge", "attention")
        if name in call.cotangents
    ]
    torch.autograd.backward(list(results.values()), cotangents)
    gradients = {n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in operands.items()}
    return {name: tensor.detach() for name, tensor in results.items()} | gradients
