"""RGCN as a program against its formula."""

from __future__ import annotations

import torch

from gnn_backend.layers.relational.rgcn import rgcn
from tests.layers.relational.support import EDGES, NODES, TYPES, assert_same, case, normal, summed


def test_the_formula() -> None:
    c = case()
    inputs = {"x": normal(NODES, 4), "weight": normal(TYPES, 4, 6), "norm": normal(EDGES)}
    x, weight, norm = inputs.values()
    messages = torch.einsum("ei,eio->eo", x[c.src], weight[c.types]) * norm[:, None]
    expected = summed(messages, c.dst)
    for run in (rgcn, rgcn.twin):
        assert_same(run(c.relations, **inputs), expected, inputs)
