"""What layers of the models take."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.layers.relational.models import MODELS, layer_arguments
from tests.layers.relational.support import NODES, case


@pytest.mark.parametrize("model", MODELS)
def test_a_layer_takes_them(model: str) -> None:
    relations = case().relations
    shapes, constants = layer_arguments(model, relations, 4, 6, 1 if model == "rgcn" else 3)
    given = {name: torch.randn(shape) for name, shape in shapes.items()}
    out = MODELS[model].twin(relations, **given, **constants)
    assert isinstance(out, torch.Tensor) and out.shape == (NODES, 6)


@pytest.mark.parametrize(("model", "heads"), [("rgcn", 2), ("rgat", 4), ("hgt", 0)])
def test_heads_that_do_not_fit(model: str, heads: int) -> None:
    with pytest.raises(InvalidArgument, match="heads"):
        layer_arguments(model, case().relations, 4, 6, heads)
