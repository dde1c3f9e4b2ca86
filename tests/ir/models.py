"""The three models over explicit gathers, as tracing would leave them, and a graph for them."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.graph.relations import Relations
from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.values import Program, Value

EDGE, SRC, DST, TYPE = Domain.EDGE, Domain.SRC, Domain.DST, Domain.EDGE_TYPE
IN, HEADS, DIM = 8, 2, 4
OUT = HEADS * DIM


def _softmax(logit: Value) -> Value:
    total = ir.gather(ir.reduce("lse", logit, DST), EDGE)
    return ir.unary("exp", ir.binary("sub", logit, total))


def rgcn() -> Program:
    """``sum x[src] W[type] * norm``."""
    x, norm = ir.input_value("x", SRC, (IN,)), ir.input_value("norm", EDGE, ())
    weight = ir.input_value("weight", TYPE, (IN, OUT))
    message = ir.binary("mul", ir.linear(ir.gather(x, EDGE), weight), norm)
    return Program((x, norm, weight), (ir.reduce("sum", message, DST),))


def rgat() -> Program:
    """Additive attention over all in-edges."""
    x, y = ir.input_value("x", SRC, (IN,)), ir.input_value("y", DST, (IN,))
    weight = ir.input_value("weight", TYPE, (IN, OUT))
    a, b = (ir.input_value(name, TYPE, (HEADS, DIM)) for name in ("a", "b"))
    z, far = (ir.reshape(ir.linear(ir.gather(rows, EDGE), weight), (HEADS, DIM)) for rows in (x, y))
    logit = ir.binary("add", ir.dot(z, ir.gather(a, EDGE)), ir.dot(far, ir.gather(b, EDGE)))
    alpha = _softmax(ir.unary("leaky_relu", logit, slope=0.2))
    out = ir.reduce("sum", ir.binary("mul", alpha, z), DST)
    return Program((x, y, weight, a, b), (out,))


def hgt() -> Program:
    """Dot-product attention with a key and a message matrix for each edge type and head."""
    k, v = (ir.input_value(name, SRC, (HEADS, DIM)) for name in "kv")
    q = ir.input_value("q", DST, (HEADS, DIM))
    att, message = (ir.input_value(name, TYPE, (HEADS, DIM, DIM)) for name in ("att", "message"))
    prior = ir.input_value("prior", TYPE, (HEADS,))
    score = ir.dot(ir.linear(ir.gather(k, EDGE), att), ir.gather(q, EDGE))
    alpha = _softmax(ir.binary("mul", score, ir.gather(prior, EDGE)))
    value = ir.linear(ir.gather(v, EDGE), message)
    out = ir.reduce("sum", ir.binary("mul", alpha, value), DST)
    return Program((k, v, q, att, message, prior), (out,))


MODELS = {"rgcn": rgcn, "rgat": rgat, "hgt": hgt}


def graph(nodes: int = 30, edges: int = 200, types: int = 5, *, seed: int = 0) -> Relations:
    """A hub at both ends, nodes without edges, a type without edges, repeated edges."""
    g = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(nodes - 3, (2, edges), generator=g)
    dst[: edges // 3] = 1
    src[edges // 3 : edges // 2] = 2
    kinds = torch.randint(types - 1, (edges,), generator=g)
    return Relations(Graph.from_edge_index(torch.stack([src, dst]), nodes, nodes), kinds, types)


def sizes(relations: Relations) -> dict[Domain, int]:
    """Rows of each domain."""
    return {domain: relations.num(domain) for domain in Domain}


def inputs(program: Program, relations: Relations, dtype: torch.dtype) -> dict[str, Tensor]:
    """Normal numbers for every input, that want gradients."""
    g = torch.Generator().manual_seed(3)
    found = {}
    for value in program.inputs:
        rows = () if value.domain is Domain.PARAM else (relations.num(value.domain),)
        x = torch.randn((*rows, *value.shape), generator=g, dtype=torch.float64)
        found[str(value.attrs["name"])] = x.to(dtype).requires_grad_()
    return found
