"""What scripts do between the three calls of a graph transformer, beside going on to the next."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

dgl = pytest.importorskip("dgl")

import dgl.function as fn  # noqa: E402
from dgl.ops import edge_softmax, u_dot_v, u_mul_e_sum  # noqa: E402

import gnn_backend  # noqa: E402
from gnn_backend.adapters.dgl.pending import PendingEdges  # noqa: E402
from tests.adapters.dgl.helpers import make_graph  # noqa: E402
from tests.adapters.dgl.test_pattern import features, same  # noqa: E402

Use = Callable[[Any, Tensor, Tensor, Tensor], list[Tensor]]


def gradients(out: Tensor, *tables: Tensor) -> list[Tensor]:
    cotangent = torch.cos(torch.arange(out.numel(), dtype=torch.float64)).view(out.shape)
    found = torch.autograd.grad(out, tables, cotangent.to(out.dtype), True, allow_unused=True)
    return [out, *(torch.zeros(1) if grad is None else grad for grad in found)]


def constant_weights(g: Any, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    return gradients(u_mul_e_sum(g, v, edge_softmax(g, u_dot_v(g, k, q)).detach()), q, k, v)


def constant_scores(g: Any, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    return gradients(u_mul_e_sum(g, v, edge_softmax(g, u_dot_v(g, k, q).detach() / 2)), q, k, v)


def without_gradients(g: Any, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    with torch.no_grad():
        weights = edge_softmax(g, u_dot_v(g, k, q))
    return gradients(u_mul_e_sum(g, v, weights), q, k, v)


def a_leaf(g: Any, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    scores = u_dot_v(g, k, q).detach().requires_grad_()
    return gradients(u_mul_e_sum(g, v, edge_softmax(g, scores * 2)), scores, q, k, v)


def kept_gradients(g: Any, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    scores = u_dot_v(g, k, q)
    weights = edge_softmax(g, scores / 2)
    scores.retain_grad()
    weights.retain_grad()
    found = gradients(u_mul_e_sum(g, v, weights), q, k, v)
    assert scores.grad is not None and weights.grad is not None
    return [*found, scores.grad, weights.grad]


def a_hook(g: Any, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    scores = u_dot_v(g, k, q) * 0.5
    scores.register_hook(lambda grad: grad * 2)
    return gradients(u_mul_e_sum(g, v, edge_softmax(g, scores)), q, k, v)


def an_edited_graph(g: Any, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    scores, weights = u_dot_v(g, k, q), edge_softmax(g, u_dot_v(g, k, q))
    out = u_mul_e_sum(g, v, weights)
    g.add_edges([0], [1])
    rows = scores.sum(1, keepdim=True) + 3 * weights
    return [*gradients(rows, q, k), *gradients(out, q, k, v)]


def a_detached_view(g: Any, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    scores = u_dot_v(g, k, q)
    scores.detach().clamp_(-1, 1)
    scores.data[0] = 3.0
    return [u_mul_e_sum(g, v, edge_softmax(g, scores)), scores.clone()]


def infinite_scales(g: Any, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    scores = [u_dot_v(g, k, q) / 0, u_dot_v(g, k, q) * math.inf, u_dot_v(g, k, q) / 0.0]
    return [u_mul_e_sum(g, v, edge_softmax(g, s)) for s in scores]


def after_a_step(g: Any, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    q, k = (torch.nn.Parameter(t.detach().clone()) for t in (q, k))
    scores = u_dot_v(g, k, q)
    torch.sigmoid(scores).sum().backward()
    torch.optim.SGD([q, k], 0.1).step()
    return [scores.detach(), torch.from_numpy(scores.detach().numpy()), q, k]


def changed_after_they_were_read(g: Any, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    with torch.no_grad():
        key = k.clone()
        weights = edge_softmax(g, u_dot_v(g, key, q))
        total = weights.sum()
        return [total, u_mul_e_sum(g, key.relu_(), weights)]


def in_inference_mode(g: Any, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    with torch.inference_mode():
        key = k * 1
        scores = u_dot_v(g, key, q)
        key.zero_()
        return [scores + 0]


def softmax_of_several_relations(g: Any, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    src, dst = g.edges()
    h = dgl.heterograph({("a", "x", "b"): (src, dst), ("a", "y", "b"): (src[:9], dst[:9])})
    keys, queries = k[: h.num_nodes("a")], q[: h.num_nodes("b")]
    scores = {etype: u_dot_v(h[etype], keys, queries) for etype in h.canonical_etypes}
    return list(edge_softmax(h, scores).values())


USES: tuple[Use, ...] = (
    constant_weights, constant_scores, without_gradients, a_leaf, kept_gradients, a_hook,
    an_edited_graph, a_detached_view, infinite_scales, after_a_step, changed_after_they_were_read,
    in_inference_mode, softmax_of_several_relations,
)  # fmt: skip


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_as_stock(use: Use) -> None:
    wanted = use(make_graph("homogeneous"), *features(make_graph("homogeneous"), 2, 8))
    g = make_graph("homogeneous")
    with gnn_backend.enabled(hosts="dgl"):
        found = use(g, *features(g, 2, 8))
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-5, atol=5e-6, equal_nan=True)


def test_constant_weights_are_fused_still() -> None:
    g = make_graph("homogeneous")
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        without_gradients(g, *features(g, 2, 8))
    assert profile.accelerated == 1


def most_likely_edges(g: Any, scores: Tensor, folder: Path) -> list[Tensor]:
    g.edata["s"] = scores
    return list(dgl.sampling.select_topk(g, 2, "s", g.nodes()).edges())


def saved_graph(g: Any, scores: Tensor, folder: Path) -> list[Tensor]:
    g.edata["s"] = scores
    dgl.save_graphs(str(folder / "graph.bin"), [g])
    return [dgl.load_graphs(str(folder / "graph.bin"))[0][0].edata["s"]]


def shared_memory(g: Any, scores: Tensor, folder: Path) -> list[Tensor]:
    scores.detach().share_memory_()
    return [scores.clone()]


def stock_operators(g: Any, scores: Tensor, folder: Path) -> list[Tensor]:
    with gnn_backend.disabled():
        weights = edge_softmax(g, scores)
        return [weights, dgl.ops.copy_e_sum(g, scores), dgl.ops.e_mul_v(g, weights, g.ndata["q"])]


def contiguous_memory(g: Any, scores: Tensor, folder: Path) -> list[Tensor]:
    scores.detach().contiguous().clamp_(-1, 1)
    return [scores.contiguous(), scores.clone()]


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize(
    "use", [most_likely_edges, saved_graph, shared_memory, stock_operators, contiguous_memory]
)
def test_handed_to_what_reads_memory(
    use: Callable[[Any, Tensor, Path], list[Tensor]], wants_gradient: bool, tmp_path: Path
) -> None:
    def call() -> list[Tensor]:
        g = make_graph("homogeneous")
        query, key, _ = (t.detach().requires_grad_(wants_gradient) for t in features(g, 8))
        g.ndata["q"] = query
        return use(g, u_dot_v(g, key, query), tmp_path)

    with gnn_backend.enabled(hosts="dgl"):
        found = call()
    same(found, call())


@pytest.mark.skipif(
    not hasattr(torch._C, "_set_throw_on_mutable_data_ptr"), reason="torch has no such switch"
)
def test_an_address_that_is_none_is_an_error() -> None:
    g = make_graph("homogeneous")
    query, key, _ = features(g, 8)
    with gnn_backend.enabled(hosts="dgl"):
        scores = u_dot_v(g, key, query)
        assert isinstance(scores, PendingEdges)
        with pytest.raises(RuntimeError, match="data pointer"):
            torch.utils.dlpack.to_dlpack(scores)


def test_scores_do_not_keep_their_graph_alive() -> None:
    g = make_graph("homogeneous")
    query, key, _ = features(g, 8)
    gc.collect()
    gc.disable()
    try:
        with gnn_backend.enabled(hosts="dgl"):
            g.ndata["q"], g.ndata["k"] = query, key
            g.apply_edges(fn.u_dot_v("k", "q", "s"))
            g.edata["w"] = edge_softmax(g, g.edata["s"])
            assert isinstance(g.edata["w"], PendingEdges)
            alive = weakref.ref(g)
            del g
        assert alive() is None
    finally:
        gc.enable()
