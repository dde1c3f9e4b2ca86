"""RGAT as a program against its formula."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from gnn_backend.layers.relational.rgat import rgat
from tests.layers.relational.support import (
    NODES,
    TYPES,
    assert_same,
    case,
    normal,
    softmax_by_destination,
    summed,
)


@pytest.mark.parametrize("heads", [1, 2])
def test_the_formula(heads: int) -> None:
    c = case()
    inputs = {
        "x": normal(NODES, 4), "weight": normal(TYPES, 4, heads * 3, seed=1),
        "att_src": normal(TYPES, heads, 3, seed=2), "att_dst": normal(TYPES, heads, 3, seed=3),
    }  # fmt: skip
    x, weight, att_src, att_dst = inputs.values()

    def projected(end: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ei,eio->eo", x[end], weight[c.types]).unflatten(1, (heads, 3))

    z_src, z_dst = projected(c.src), projected(c.dst)
    logit = (att_src[c.types] * z_src).sum(-1) + (att_dst[c.types] * z_dst).sum(-1)
    alpha = softmax_by_destination(functional.leaky_relu(logit, 0.3), c.dst)
    expected = summed(alpha[..., None] * z_src, c.dst).flatten(1)
    for run in (rgat, rgat.twin):
        found = run(c.relations, **inputs, num_heads=heads, slope=0.3)
        assert_same(found, expected, inputs)
