"""Tensors on edges whose values are put off: whatever is done with them, they are as computed."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from gnn_backend.adapters.dgl import pending
from gnn_backend.adapters.dgl.pending import PendingEdges
from gnn_backend.errors import GNNBackendError

SRC, DST = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([0, 0, 1, 1, 1])
GRAPH = object()


def dots(key: Tensor, query: Tensor) -> Tensor:
    return (key[SRC] * query[DST]).sum(-1, keepdim=True)


def gradients(key: Tensor, query: Tensor, grad: Tensor, needed: tuple[bool, bool]):
    return (
        torch.zeros_like(key).index_add(0, SRC, grad * query[DST]) if needed[0] else None,
        torch.zeros_like(query).index_add(0, DST, grad * key[SRC]) if needed[1] else None,
    )


def softmax(logits: Tensor) -> Tensor:
    parts = logits.exp()
    return parts / parts.new_zeros(2, *parts.shape[1:]).index_add(0, DST, parts)[DST]


@pytest.fixture
def features() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    key, query = (
        torch.randn(rows, 2, 4, dtype=torch.float64, generator=generator) for rows in (3, 2)
    )
    return key.requires_grad_(), query.requires_grad_()


def both(features: tuple[Tensor, Tensor], put_off: bool) -> tuple[Tensor, Tensor]:
    """Scores and weights, put off or not."""
    key, query = features
    if not put_off:
        scores = dots(key, query) / 2.0 * 3
        return scores, softmax(scores)
    scores = pending.scores(GRAPH, 5, key, query, dots, gradients) / 2.0 * 3
    assert isinstance(scores, PendingEdges)
    weights = pending.weights(GRAPH, scores, softmax)
    assert isinstance(weights, PendingEdges)
    return scores, weights


USES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "scores alone": lambda s, w: (s * torch.arange(5.0).view(5, 1, 1)).sum(),
    "clamped": lambda s, w: (w.clamp(max=0.4) ** 2).sum(),
    "both": lambda s, w: (w.squeeze(-1) @ w.new_ones(2, 3)).pow(2).sum() + s.pow(2).sum(),
    "dropout of nothing": lambda s, w: torch.nn.functional.dropout(w, 0.0).pow(3).sum(),
    "in place": lambda s, w: w.masked_fill_(DST.bool().view(5, 1, 1), 0.0).pow(2).sum(),
    "augmented": lambda s, w: s.mul_(2).add_(1).pow(2).sum(),
    "indexed": lambda s, w: w[1:, 0].prod() * s[DST == 0].sum(),
    "detached": lambda s, w: (s * w.detach()).sum(),
    "concatenated": lambda s, w: torch.cat([s, w], -1).pow(2).sum(),
}


@pytest.mark.parametrize("name", USES)
def test_gradients_and_their_gradients(features: tuple[Tensor, Tensor], name: str) -> None:
    found = []
    for put_off in (True, False):
        first = torch.autograd.grad(
            USES[name](*both(features, put_off)), features, create_graph=True
        )
        second = torch.autograd.grad(
            sum(g.pow(2).sum() for g in first), features, allow_unused=True, materialize_grads=True
        )
        found.append((*first, *second))
    for ours, stock in zip(*found, strict=True):
        torch.testing.assert_close(ours, stock)


READS: dict[str, Callable[[Tensor], Tensor]] = {
    "numpy": lambda t: torch.from_numpy(t.numpy()),
    "asarray": lambda t: torch.from_numpy(np.asarray(t)),
    "tolist": lambda t: torch.tensor(t.tolist(), dtype=t.dtype),
    "deepcopy": copy.deepcopy,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "dlpack": lambda t: torch.from_dlpack(t),
    "clone": lambda t: t.clone(),
    "to": lambda t: t.to(torch.float32).double(),
    "item": lambda t: torch.tensor([[[x.item()] for x in row] for row in t], dtype=t.dtype),
    "out": lambda t: torch.add(t, 0, out=torch.empty(0, dtype=t.dtype)),
    "copy_": lambda t: torch.empty(t.shape, dtype=t.dtype).copy_(t),
}


@pytest.mark.parametrize("name", READS)
def test_reading(features: tuple[Tensor, Tensor], name: str) -> None:
    with torch.no_grad():
        for ours, stock in zip(both(features, True), both(features, False), strict=True):
            assert (ours.shape, ours.dtype, ours.device) == (stock.shape, stock.dtype, stock.device)
            found = READS[name](ours)
            assert type(found) is Tensor
            torch.testing.assert_close(found, stock, rtol=1e-6, atol=1e-6)


def test_saved_to_a_file(features: tuple[Tensor, Tensor]) -> None:
    with torch.no_grad():
        scores, wanted = both(features, True)[0], both(features, False)[0]
        file = io.BytesIO()
        torch.save(scores, file)
        file.seek(0)
        torch.testing.assert_close(torch.load(file), wanted)
        assert repr(scores)


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda t: t.add_(1),
    "an entry": lambda t: t.__setitem__(0, 7.0),
    "a view": lambda t: t[1:].zero_(),
    "as the result of a function": lambda t: torch.add(t, 1, out=t),
    "by address": lambda t: t.numpy().fill(3),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", CHANGES)
def test_changed_values_are_not_computed_again(
    features: tuple[Tensor, Tensor], name: str, mode: Callable[[], object]
) -> None:
    with mode():  # type: ignore[attr-defined]
        for ours, stock in zip(both(features, True), both(features, False), strict=True):
            CHANGES[name](ours)
            CHANGES[name](stock)
            torch.testing.assert_close(ours.clone(), stock)
            assert ours.recipe is None
        weights = pending.weights(GRAPH, both(features, True)[0], softmax)
        weights.mul_(2)
        assert pending.attention_of(GRAPH, features[0], weights) is None


def test_what_only_reads_leaves_the_recipe(features: tuple[Tensor, Tensor]) -> None:
    scores, weights = both(features, True)
    assert weights.sum() > 0 and scores.mean() is not None
    assert weights.recipe is not None and scores.recipe is not None
    assert weights.recipe.scale == 1.5
    assert pending.attention_of(GRAPH, features[0], weights) is weights.recipe


def test_another_graph_or_shape_is_not_attention(features: tuple[Tensor, Tensor]) -> None:
    scores, weights = both(features, True)
    key = features[0]
    assert pending.weights(object(), scores, softmax) is None
    assert pending.weights(GRAPH, weights, softmax) is None
    assert pending.attention_of(GRAPH, key, scores) is None
    assert pending.attention_of(object(), key, weights) is None
    assert pending.attention_of(GRAPH, key[:, :, :2], weights) is None
    assert pending.attention_of(GRAPH, key.float(), weights) is None
    assert pending.attention_of(GRAPH, key, torch.ones(5, 2, 1)) is None


def test_a_feature_that_was_changed_is_refused(features: tuple[Tensor, Tensor]) -> None:
    with torch.no_grad():
        scores, weights = both(features, True)
        kept = scores.clone()  # computed before, so that nothing is lost
        features[1].mul_(2)
        torch.testing.assert_close(scores.clone(), kept)
        with pytest.raises(GNNBackendError, match="changed in place after its dot products"):
            weights.sum()
        with pytest.raises(GNNBackendError, match="changed in place"):
            pending.attention_of(GRAPH, features[0], weights)
