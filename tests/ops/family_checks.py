"""Calls of the attention operators, judged by the twins.

Imports no pytest, so that ``python -m tests.gpu`` can use it anywhere.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.runtime.random import draw_dropout
from tests.ops.family import Call, call
from tests.ops.support import TOLERANCE

#: Case, heads, head dimension, width of edge features, dtype: tails of lanes and of 16-byte
#: accesses, whole rows, one value, heads side by side, several blocks of heads.
SHAPES = [
    ("gatv2 edge", 3, 1, 1, torch.float32),
    ("gatv2 edge", 2, 64, 1, torch.float32),
    ("gatv2 edge", 2, 64, 1, torch.bfloat16),
    ("gatv2 edge", 1, 24, 1, torch.float16),
    ("gat logit", 2, 64, 1, torch.float32),
    ("gat logit", 4, 16, 1, torch.bfloat16),
    ("gat features", 4, 64, 16, torch.float32),
    ("gat features by head", 3, 33, 5, torch.bfloat16),
    ("supergat", 2, 64, 1, torch.float32),
    ("supergat", 2, 64, 1, torch.bfloat16),
    ("supergat", 3, 7, 1, torch.float32),
    ("dot bias", 8, 8, 1, torch.float32),
    ("dot bias", 2, 64, 1, torch.bfloat16),
    ("dot bias", 3, 7, 1, torch.float16),
    ("dot query", 16, 8, 1, torch.float32),
    ("dot query", 1, 1, 300, torch.float32),
    ("dot sum", 1, 7, 16, torch.float32),
    ("dot all", 4, 64, 16, torch.float32),
    ("dot all", 4, 64, 16, torch.bfloat16),
    ("dot all by head", 2, 64, 64, torch.float32),
    ("dot all by head", 2, 33, 16, torch.float16),
]


def shaped(case: str, heads: int, dim: int, width: int, dtype: torch.dtype) -> Call:
    """A call whose logits are of order one, and whose 16-bit sums are exact."""
    c = call(case, heads, dim, width, dtype=dtype)
    with torch.no_grad():
        for name in ("att", "k_src", "edge_query"):
            if name in c.operands:
                c.operands[name] *= c.operands[name].shape[-1] ** -0.5
        if case == "supergat":
            c.operands["x_dst"] *= dim**-0.5
        for name in ("x_src", "x_dst", "edge"):  # their sums are rounded to 16 bits
            if "edge" in c.operands:
                c.operands[name].copy_((c.operands[name].clamp(-2, 2) * 16).round() / 16)
    return c


def on_device(c: Call, edges: tuple[Tensor, int, int], device: str) -> Call:
    """The same call there."""
    operands = {n: t.detach().to(device).requires_grad_() for n, t in c.operands.items()}
    index, num_src, num_dst = edges
    graph = Graph.from_edge_index(index.to(device), num_src, num_dst)
    return dataclasses.replace(c, graph=graph, operands=operands)


def check(c: Call, p: float = 0.0, factor: float = 1.0) -> dict[str, Tensor]:
    """Results and gradients of a call against the twin in float64; returns them."""
    torch.manual_seed(3)
    got = c.differentiated(c.run(dropout_p=p))
    torch.manual_seed(3)
    dropout = draw_dropout(p, c.graph.device) if p else None
    wide = c.to(torch.float64)
    want = wide.differentiated(wide.twin(dropout))
    largest = max(w.abs().max() for n, w in want.items() if not n.startswith("out"))
    dtype = next(iter(c.operands.values())).dtype
    for name, expected in want.items():
        is_out = name.startswith("out")
        scale = expected.abs().max() if is_out else max(expected.abs().max(), 0.01 * largest)
        assert got[name].dtype == dtype and got[name].shape == expected.shape, name
        error = (got[name].double() - expected).abs().max() / scale
        assert error <= TOLERANCE[dtype][not is_out] * factor, f"{name}: {error:.1e}"
    return got
