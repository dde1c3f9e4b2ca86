"""Weighted messages of graphs on the CPU: as DGL's own operators, and theirs where these win."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gnn_backend
from gnn_backend import config

pytest.importorskip("dgl")
import dgl
import dgl.function as fn

from gnn_backend.adapters.dgl import weighted

NODES, EDGES = 20, 90


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weighted, "LEAST", 1)


def graph(kind: str) -> Any:
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(NODES - 2, (2, EDGES), generator=generator)  # two without edges
    if kind == "block":
        return dgl.create_block((ends[0], ends[1]), NODES + 3, NODES)
    if kind == "slice":
        counts = {"a": NODES, "b": NODES}
        relations = {("a", "r", "b"): (ends[0], ends[1]), ("b", "s", "a"): (ends[1], ends[0])}
        return dgl.heterograph(relations, counts)["r"]
    return dgl.graph((ends[0], ends[1]), num_nodes=NODES)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def run(g: Any, reduce: str, u: Tensor, e: Tensor) -> list[Tensor]:
    with g.local_scope():
        g.srcdata["x"], g.edata["w"] = u, e
        g.update_all(fn.u_mul_e("x", "w", "m"), getattr(fn, reduce)("m", "y"))
        out = g.dstdata["y"]
    cotangent = torch.arange(out.numel(), dtype=out.dtype).view_as(out).sin()
    return [out.detach(), *torch.autograd.grad(out, (u, e), cotangent)]


@pytest.mark.parametrize("tails", [((5,), (1,)), ((5,), (5,)), ((3, 4), (3, 1)), ((3, 4), (1, 1)),
                                   ((3, 4), (1,)), ((5,), ())])  # fmt: skip
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.sampled(4)
def test_as_dgl(reduce: str, tails: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    g = graph("graph")
    u, e = drawn(NODES, *tails[0], seed=1), drawn(EDGES, *tails[1], seed=2)
    want = run(g, reduce, u, e)
    with gnn_backend.enabled(mode="strict", hosts="dgl"), gnn_backend.profile() as profile:
        got = run(g, reduce, u, e)
    assert profile.by_symbol["dgl.u_mul_e"].accelerated == 1
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["block", "slice"])
def test_kinds_of_graphs(kind: str) -> None:
    g = graph(kind)
    u, e = drawn(g.num_src_nodes(), 5, seed=1), drawn(EDGES, 1, seed=2)
    want = run(g, "sum", u, e)
    with gnn_backend.enabled(mode="verify", hosts="dgl"), gnn_backend.profile() as profile:
        got = run(g, "sum", u, e)
    assert profile.by_symbol["dgl.u_mul_e"].accelerated == 1
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


LEFT = {
    "half": lambda u, e: (u.half(), e.half()),
    "wider edges": lambda u, e: (u[:, :1], e.expand(-1, 5)),
    "other dimension": lambda u, e: (u.unsqueeze(1).expand(-1, 5, -1), e.expand(-1, 5)),
    "integers": lambda u, e: (u.long(), e.long()),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_is_dgls_own(case: str) -> None:
    g = graph("graph")
    u, e = LEFT[case](drawn(NODES, 5, seed=1).detach(), drawn(EDGES, 1, seed=2).detach())

    def call() -> Any:
        try:
            return dgl.ops.u_mul_e_sum(g, u, e)
        except dgl.DGLError:
            return "refused"

    want = call()
    with gnn_backend.enabled(mode="strict", hosts="dgl"), gnn_backend.profile() as profile:
        got = call()
    assert "dgl.u_mul_e" not in profile.by_symbol
    assert got == want if isinstance(want, str) else torch.equal(got, want)


def test_small_messages_and_other_targets_are_dgls(monkeypatch: pytest.MonkeyPatch) -> None:
    g, u, e = graph("graph"), drawn(NODES, 5, seed=1), drawn(EDGES, 1, seed=2)
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        with config.override(cpu_target="emulator"):
            dgl.ops.u_mul_e_sum(g, u, e)
        monkeypatch.setattr(weighted, "LEAST", EDGES * 5 + 1)
        dgl.ops.u_mul_e_sum(g, u, e)
    with gnn_backend.enabled(hosts="dgl", exclude="residence"), gnn_backend.profile() as other:
        monkeypatch.setattr(weighted, "LEAST", 1)
        dgl.ops.u_mul_e_sum(g, u, e)
    assert "dgl.u_mul_e" not in {*profile.by_symbol, *other.by_symbol}


def test_second_derivatives() -> None:
    g = graph("graph")
    u, e = (drawn(n, 2, seed=n).double().detach().requires_grad_() for n in (NODES, EDGES))
    with gnn_backend.enabled(mode="strict", hosts="dgl"):
        assert torch.autograd.gradgradcheck(
            lambda a, b: dgl.ops.u_mul_e_sum(g, a, b), (u, e), fast_mode=True
        )
