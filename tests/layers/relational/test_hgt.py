"""HGT's attention as a program against its formula."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.layers.relational.hgt import hgt
from tests.layers.relational.support import (
    KINDS,
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
    c, dim = case(), 3
    inputs = {"x": normal(NODES, 4)}
    for k, name in enumerate(("query", "key", "value")):
        inputs[name] = normal(KINDS, 4, heads * dim, seed=k)
    for k, name in enumerate(("att", "message")):
        inputs[name] = normal(TYPES, heads, dim, dim, seed=5 + k)
    inputs["prior"] = normal(TYPES, heads, seed=9)
    x, query, key, value, att, message, prior = inputs.values()

    def projected(weight: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ni,nio->no", x, weight[c.kinds]).unflatten(1, (heads, dim))

    q, k, v = (projected(w) for w in (query, key, value))
    score = torch.einsum("ehi,ehio,eho->eh", k[c.src], att[c.types], q[c.dst])
    alpha = softmax_by_destination(score * prior[c.types] / dim**0.5, c.dst)
    messages = torch.einsum("ehi,ehio->eho", v[c.src], message[c.types])
    expected = summed(alpha[..., None] * messages, c.dst).flatten(1)
    for run in (hgt, hgt.twin):
        assert_same(run(c.relations, **inputs, num_heads=heads), expected, inputs)
