"""The graph transformer in three calls: fused where it is one, the stock result everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

dgl = pytest.importorskip("dgl")

import dgl.function as fn  # noqa: E402

import gnn_backend  # noqa: E402
from gnn_backend.adapters.dgl.pending import PendingEdges  # noqa: E402
from gnn_backend.config import override  # noqa: E402
from tests.adapters.dgl.helpers import KINDS, fused, make_graph  # noqa: E402

Attention = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


def by_functions(g: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = dgl.ops.u_dot_v(g, key, query) / math.sqrt(key.shape[-1])
    return dgl.ops.u_mul_e_sum(g, value, dgl.nn.functional.edge_softmax(g, scores))


def by_messages(g: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with g.local_scope():
        g.srcdata["k"], g.srcdata["v"], g.dstdata["q"] = key, value, query
        g.apply_edges(fn.v_dot_u("q", "k", "s"))
        g.edata["w"] = dgl.ops.edge_softmax(g, g.edata.pop("s") * 0.3)
        g.update_all(fn.u_mul_e("v", "w", "m"), fn.sum("m", "out"))
        return g.dstdata["out"]


def features(g: Any, *tail: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Query, key and value that want gradients."""
    generator = torch.Generator().manual_seed(1)
    rows = (g.num_dst_nodes(), g.num_src_nodes(), g.num_src_nodes())
    return [torch.randn(n, *tail, generator=generator).to(dtype).requires_grad_() for n in rows]


def results(attention: Attention, g: Any, tables: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of the tables."""
    out = attention(g, *tables)
    cotangent = torch.cos(torch.arange(out.numel(), dtype=torch.float64)).view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, tables, cotangent.to(out.dtype))]


def same(ours: list[Tensor], stock: list[Tensor]) -> None:
    for mine, other in zip(ours, stock, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", [by_functions, by_messages])
@pytest.mark.parametrize("tail", [(2, 8), (7,)])
def test_equals_stock(kind: str, attention: Attention, tail: tuple[int, ...]) -> None:
    g = make_graph(kind)
    tables = features(g, *tail)
    wanted = results(attention, g, tables)
    with fused():
        found = results(attention, g, tables)
    same(found, wanted)


@pytest.mark.parametrize("attention", [by_functions, by_messages])
def test_on_the_emulator(attention: Attention) -> None:
    g = make_graph("homogeneous")
    tables = features(g, 2, 8)
    wanted = results(attention, g, tables)
    with override(cpu_target="emulator"), fused():
        found = results(attention, g, tables)
    same(found, wanted)


def test_dot_gat_is_this_pattern() -> None:
    g = make_graph("homogeneous", covered=True)
    layer, x = dgl.nn.DotGatConv(6, 4, 3), torch.randn(14, 6, requires_grad=True)
    wanted = layer(g, x)
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        found = layer(g, x)
    assert profile.accelerated == 1 and not profile.reasons
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-6)


OTHERWISE: dict[str, Attention] = {
    "exponential of clamped scores": lambda g, q, k, v: dgl.ops.u_mul_e_sum(
        g, v, dgl.ops.u_dot_v(g, k, q).clamp(-5, 5).exp()
    ),
    "scores as weights": lambda g, q, k, v: dgl.ops.u_mul_e_sum(g, v, dgl.ops.u_dot_v(g, k, q)),
    "softmax by source": lambda g, q, k, v: dgl.ops.u_mul_e_sum(
        g, v, dgl.ops.edge_softmax(g, dgl.ops.u_dot_v(g, k, q), norm_by="src")
    ),
    "largest message": lambda g, q, k, v: dgl.ops.u_mul_e_max(
        g, v, dgl.ops.edge_softmax(g, dgl.ops.u_dot_v(g, k, q))
    ),
    "weights divided": lambda g, q, k, v: dgl.ops.u_mul_e_sum(
        g, v, dgl.ops.edge_softmax(g, dgl.ops.u_dot_v(g, k, q)) / 3
    ),
    "a mask": lambda g, q, k, v: dgl.ops.u_mul_e_sum(
        g, v, dgl.ops.edge_softmax(g, dgl.ops.u_dot_v(g, k, q).masked_fill(
            (torch.arange(g.num_edges()) % 3 == 0).view(-1, 1, 1), -1e9))
    ),
    "readout of edges": lambda g, q, k, v: dgl.ops.segment.segment_reduce(
        torch.tensor([4, g.num_edges() - 4]), dgl.ops.u_dot_v(g, k, q).flatten(1)
    ) + 0 * v.sum(),
    "weights of edges": lambda g, q, k, v: dgl.ops.copy_e_sum(
        g, dgl.ops.edge_softmax(g, dgl.ops.u_dot_v(g, k, q))
    ) + 0 * v.sum(),
    "scores on edges again": lambda g, q, k, v: dgl.ops.e_mul_v(
        g, dgl.ops.u_dot_v(g, k, q), q
    ) + 0 * v.sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_not_attention_is_as_stock(name: str) -> None:
    g = make_graph("homogeneous")
    tables = features(g, 2, 8)
    wanted = results(OTHERWISE[name], g, tables)
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        found = results(OTHERWISE[name], g, tables)
    assert not profile.accelerated
    same(found, wanted)


def test_scores_and_weights_can_be_looked_at() -> None:
    g = make_graph("homogeneous")
    query, key, value = features(g, 2, 8)
    scores = dgl.ops.u_dot_v(g, key, query)
    weights = dgl.ops.edge_softmax(g, scores)
    with fused():
        g.edata["s"] = dgl.ops.u_dot_v(g, key, query)
        g.edata["w"] = dgl.ops.edge_softmax(g, g.edata["s"])
        out = dgl.ops.u_mul_e_sum(g, value, g.edata["w"])
    torch.testing.assert_close(g.edata["s"].clone(), scores)
    torch.testing.assert_close(g.edata["w"].clone(), weights)
    torch.testing.assert_close(out, dgl.ops.u_mul_e_sum(g, value, weights), rtol=2e-5, atol=2e-6)
    assert g.subgraph([0, 1, 2]).edata["w"].shape[1:] == (2, 1)


@pytest.mark.parametrize(
    "change",
    ["dtype", "autocast", "excluded", "disabled", "several relations", "few edges", "edge subset"],
)
def test_what_is_not_put_off(change: str) -> None:
    g = make_graph("homogeneous")
    dtype = torch.int64 if change == "dtype" else torch.float32
    query, key = (torch.arange(14 * 8).view(14, 2, 4).to(dtype) for _ in range(2))
    with gnn_backend.enabled(
        hosts="dgl", exclude="attention_pattern" if change == "excluded" else None
    ):
        if change == "several relations":
            pair = ([0, 1], [1, 1])
            hetero = dgl.heterograph({("a", "x", "a"): pair, ("a", "y", "a"): pair})
            scores = dgl.ops.u_dot_v(hetero["x"], query[:2], key[:2])
            assert isinstance(scores, PendingEdges)  # a slice has one relation
            return
        if change == "few edges":
            with override(min_edges=10_000):
                scores = dgl.ops.u_dot_v(g, query, key)
        elif change == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                scores = dgl.ops.u_dot_v(g, query, key)
        elif change == "disabled":
            with gnn_backend.disabled():
                scores = dgl.ops.u_dot_v(g, query, key)
        elif change == "edge subset":
            logits = dgl.ops.u_dot_v(g, query, key)
            assert isinstance(logits, PendingEdges)
            scores = dgl.ops.edge_softmax(g, logits, eids=torch.arange(g.num_edges()))
        elif change == "dtype":
            with pytest.raises(dgl.DGLError):
                dgl.ops.u_dot_v(g, query, key)
            return
        else:
            scores = dgl.ops.u_dot_v(g, query, key)
    assert type(scores) is Tensor


def test_verify_compares_with_the_three_calls() -> None:
    g = make_graph("homogeneous")
    tables = features(g, 2, 8)
    with gnn_backend.enabled(hosts="dgl", mode="verify"), gnn_backend.profile() as profile:
        results(by_functions, g, tables)
    assert profile.accelerated == 1


def in_torch(g: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same in plain torch: DGL's own edge softmax has no second derivative on the CPU."""
    src, dst = g.edges()
    parts = ((key[src] * query[dst]).sum(-1, keepdim=True) / math.sqrt(key.shape[-1])).exp()
    total = parts.new_zeros(len(query), *parts.shape[1:]).index_add(0, dst, parts)
    weights = parts / total[dst]
    return torch.zeros_like(query).index_add(0, dst, weights * value[src])


def test_double_backward() -> None:
    g = make_graph("homogeneous")
    tables = features(g, 2, 4, dtype=torch.float64)

    def second(attention: Attention) -> list[Tensor]:
        out = attention(g, *tables)
        first = torch.autograd.grad(out.pow(2).sum(), tables, create_graph=True)
        return list(torch.autograd.grad(sum(x.pow(2).sum() for x in first), tables))

    with fused():
        found = second(by_functions)
    same(found, second(in_torch))
