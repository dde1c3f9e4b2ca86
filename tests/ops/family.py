"""Problems for every attention operator with every edge operand, and the formula as loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from gnn_backend.graph import Graph
from gnn_backend.ops.attention import (
    dot_attention,
    gat_attention,
    gatv2_attention,
    supergat_attention,
)
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.ops.softmax_attention import attention_twin
from gnn_backend.runtime.random import Dropout
from tests.ops.support import edges_with_hubs

OPERATORS: dict[str, Callable[..., Any]] = {
    "gatv2": gatv2_attention,
    "gat": gat_attention,
    "dot": dot_attention,
    "supergat": supergat_attention,
}
SCALARS = {
    "gatv2": {"negative_slope": 0.3},
    "gat": {"negative_slope": 0.3},
    "dot": {"scale": 0.4},
    "supergat": {"negative_slope": 0.3, "scale": 0.4},
}

#: Operator, its optional operands, and whether edge features are summed.
CASES = {
    "gatv2": ("gatv2", (), False),
    "gatv2 edge": ("gatv2", ("edge",), False),
    "gat": ("gat", (), False),
    "gat logit": ("gat", ("edge_logit",), False),
    "gat features": ("gat", ("edge_features",), True),
    "gat features by head": ("gat", ("edge_logit", "edge_features by head"), True),
    "supergat": ("supergat", (), False),
    "dot": ("dot", (), False),
    "dot bias": ("dot", ("edge_bias",), False),
    "dot query": ("dot", ("edge_features", "edge_query"), False),
    "dot sum": ("dot", ("edge_features",), True),
    "dot all": ("dot", ("edge_bias", "edge_features", "edge_query"), True),
    "dot all by head": ("dot", ("edge_bias", "edge_features by head", "edge_query"), True),
}


@dataclasses.dataclass
class Call:
    """One call of an operator, with what its results are multiplied with."""

    name: str
    graph: Graph
    operands: dict[str, Tensor]
    aggregate: bool
    weights: bool = False

    @property
    def scalars(self) -> dict[str, float]:
        return SCALARS[self.name]

    def run(self, **options: Any) -> tuple[Tensor, ...]:
        """The operator's results."""
        if self.name == "dot":
            options["edge_aggregate"] = self.aggregate
        options |= self.scalars | {"return_attention": self.weights}
        found = OPERATORS[self.name](self.graph, **self.operands, **options)
        return found if isinstance(found, tuple) else (found,)

    def twin(self, dropout: Dropout | None = None) -> tuple[Tensor, ...]:
        """What they should be."""
        out, out_edge, attention = attention_twin(
            FUNCTORS[self.name], self.graph, self.operands, self.scalars, dropout,
            aggregate=self.aggregate,
        )  # fmt: skip
        edge = () if out_edge is None else (out_edge,)
        return (out, *edge, attention) if self.weights else (out, *edge)

    def to(self, dtype: torch.dtype) -> Call:
        """The same values in another dtype, as new leaves."""
        operands = {n: t.detach().to(dtype).requires_grad_() for n, t in self.operands.items()}
        return dataclasses.replace(self, operands=operands)

    def differentiated(self, results: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """Results, and gradients for seeded cotangents of all of them."""
        generator = torch.Generator().manual_seed(5)
        cotangents = [
            torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.device, r.dtype)
            for r in results
        ]
        names = list(self.operands)
        grads = torch.autograd.grad(results, list(self.operands.values()), cotangents)
        found = {f"out{k}": r.detach() for k, r in enumerate(results)}
        return found | dict(zip(names, grads, strict=True))


def call(
    case: str,
    heads: int = 2,
    dim: int = 5,
    width: int = 3,
    *,
    edges: tuple[Tensor, int, int] | None = None,
    dtype: torch.dtype = torch.float32,
    weights: bool = False,
    seed: int = 0,
) -> Call:
    """Seeded normal operands of a case; ``width`` is that of edge features."""
    name, optional, aggregate = CASES[case]
    edge_index, num_src, num_dst = edges_with_hubs() if edges is None else edges
    count, by_head = edge_index.shape[1], "edge_features by head" in optional
    shapes = {
        "x_src": (num_src, heads, dim),
        "k_src": (num_src, heads, dim),
        "v_src": (num_src, heads, dim),
        "x_dst": (num_dst, heads, dim),
        "q_dst": (num_dst, heads, dim),
        "att": (heads, dim),
        "el": (num_src, heads),
        "er": (num_dst, heads),
        "edge": (count, heads, dim),
        "edge_logit": (count, heads),
        "edge_bias": (count, heads),
        "edge_features": (count, heads, width) if by_head else (count, width),
        "edge_query": (num_dst, heads, width),
    }
    generator = torch.Generator().manual_seed(seed)
    names = (*FUNCTORS[name].operands, *(n.split()[0] for n in optional))
    operands = {
        n: torch.randn(shapes[n], generator=generator, dtype=torch.float64)
        .to(dtype)
        .requires_grad_()
        for n in names
    }
    graph = Graph.from_edge_index(edge_index, num_src, num_dst)
    return Call(name, graph, operands, aggregate, weights)


def formula(c: Call, edges: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Sums of values and of edge features, and weights: one edge and head at a time."""
    t = {n: v.detach() for n, v in c.operands.items()}
    heads = t[FUNCTORS[c.name].value].shape[1]
    weights = torch.zeros(edges.shape[1], heads, dtype=torch.float64)
    for h in range(heads):
        ends = enumerate(edges.T.tolist())
        logits = torch.tensor([_logit(c, e, j, i, h) for e, (j, i) in ends], dtype=torch.float64)
        for i in edges[1].unique():
            mine = edges[1] == i
            weights[mine, h] = logits[mine].softmax(0)
    values = t[FUNCTORS[c.name].value].double()
    out = torch.zeros(c.graph.num_dst, *values.shape[1:], dtype=torch.float64)
    features = t.get("edge_features")
    out_edge = None
    if c.aggregate:
        assert features is not None
        out_edge = torch.zeros(c.graph.num_dst, heads, features.shape[-1], dtype=torch.float64)
    for e, (j, i) in enumerate(edges.T.tolist()):
        out[i] += weights[e][:, None] * values[j]
        if out_edge is not None:
            out_edge[i] += weights[e][:, None] * features[e].double()
    return out, out_edge, weights


def _logit(c: Call, e: int, j: int, i: int, h: int) -> float:
    t = {n: v.detach().double() for n, v in c.operands.items()}
    if c.name == "gatv2":
        z = t["x_src"][j, h] + t["x_dst"][i, h]
        z = z + t["edge"][e, h] if "edge" in t else z
        return float((t["att"][h] * leaky_relu(z, 0.3)).sum())
    if c.name == "gat":
        z = t["el"][j, h] + t["er"][i, h]
        z = z + t["edge_logit"][e, h] if "edge_logit" in t else z
        return float(leaky_relu(z, 0.3))
    if c.name == "supergat":
        p = t["x_src"][j, h] @ t["x_dst"][i, h]
        return float(leaky_relu(0.4 * p + (t["el"][j, h] + t["er"][i, h]) * p.sigmoid(), 0.3))
    total = t["q_dst"][i, h] @ t["k_src"][j, h]
    if "edge_query" in t:
        features = t["edge_features"][e]
        total = total + t["edge_query"][i, h] @ (features if features.dim() == 1 else features[h])
    return float(0.4 * total + (t["edge_bias"][e, h] if "edge_bias" in t else 0.0))
