"""Gradients of the sparse operators on resident graphs: stock's, from fewer and smaller passes."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Iterator
from typing import Any

import dgl
import pytest
import torch
from torch import Tensor

import gnn_backend
from gnn_backend import config
from gnn_backend.adapters.dgl import kernels
from gnn_backend.graph import graph as graphs
from gnn_backend.runtime.sparse import rows
from tests.adapters.dgl.residence.places import Place, heterogeneous, homogeneous

pytestmark = pytest.mark.sampled(3)


@pytest.fixture(autouse=True)
def kernels_here(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Split rows of more than eight edges, and run the CPU's kernels in the emulator."""
    monkeypatch.setattr(rows, "chunk_of", lambda *_: 8)
    if place.device.type == "cpu" and shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels with")
    with config.override(cpu_target="emulator"):
        yield


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Every operator that runs: its name, what it computes, and the shape of its result."""
    seen: list[tuple[str, ...]] = []

    def watched(name: str) -> Any:
        operator = kernels.OPERATORS[name]

        def call(graph: Any, op: str, *args: Any, **kwargs: Any) -> Any:
            found = operator(graph, op, *args, **kwargs)
            out = found[0] if isinstance(found, tuple) else found
            seen.append((name, op, *map(str, out.shape[1:])))
            return found

        return call

    for name in ("gspmm", "gsddmm"):
        monkeypatch.setitem(kernels.OPERATORS, name, watched(name))
    return seen


def leaf(rows: int, tail: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(rows, *tail, generator=generator) + 0.5).requires_grad_()


def pulled_back(y: Tensor, *leaves: Tensor) -> list[Tensor]:
    """The result, without infinities of rows that have no edges, and gradients of all leaves."""
    y = torch.where(y.isfinite(), y, 0)
    weights = torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape)
    return [y.detach(), *torch.autograd.grad(y, leaves, weights)]


def own(table: Tensor) -> Tensor:
    return table.detach().requires_grad_()


SHAPES = [
    ((2, 4), (2, 4)), ((2, 4), (1, 1)), ((2, 4), (2, 1)), ((2, 4), (1, 4)), ((2, 4), (1,)),
    ((1, 1), (2, 4)), ((2, 1), (1, 4)), ((3, 2, 4), (1, 2, 1)), ((4,), (1,)), ((), ()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "reduce"),
    [("add", "sum"), ("mul", "sum"), ("div", "mean"), ("sub", "max"), ("mul", "max")],
)
@pytest.mark.parametrize(("source", "edge"), SHAPES, ids=str)
def test_messages_that_broadcast(
    place: Place, op: str, reduce: str, source: tuple[int, ...], edge: tuple[int, ...]
) -> None:
    def run(g: Any, x: Tensor, w: Tensor) -> Any:
        x, w = own(x), own(w)
        return pulled_back(dgl.ops.gspmm(g, op, reduce, x, w), x, w)

    place.check(run, homogeneous(torch.int64), leaf(13, source, 1), leaf(40, edge, 2))


@pytest.mark.parametrize("targets", ["uv", "ue", "ev"])
@pytest.mark.parametrize("op", ["sub", "mul", "dot"])
@pytest.mark.parametrize(("left", "right"), SHAPES[:-2], ids=str)
def test_edges_that_broadcast(
    place: Place, op: str, targets: str, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    if op == "dot":
        left, right = ((*shape, 3) for shape in (left, right))

    def run(g: Any, a: Tensor, b: Tensor) -> Any:
        a, b = own(a), own(b)
        return pulled_back(dgl.ops.gsddmm(g, op, a, b, *targets), a, b)

    sizes = {"u": 13, "v": 13, "e": 40}
    operands = (leaf(sizes[targets[0]], left, 1), leaf(sizes[targets[1]], right, 2))
    place.check(run, homogeneous(torch.int32), *operands)


@pytest.mark.parametrize("edge", [(1, 1), (2, 1), (1,)], ids=str)
def test_gradient_of_a_weight_is_a_dot_product(
    place: Place, edge: tuple[int, ...], passes: list[Any]
) -> None:
    g = place.graph(homogeneous(torch.int64))
    x, w = place.put(leaf(13, (2, 4), 1).detach()), own(place.put(leaf(40, edge, 2)))
    with place.standing_in():
        pulled_back(dgl.ops.u_mul_e_sum(g, x, w), w)
    heads = ("2",) if edge == (2, 1) else ()
    assert passes == [("gspmm", "mul", "2", "4"), ("gsddmm", "dot", *heads, "1")]


def test_gradient_of_a_factor_on_edges_is_a_dot_product(place: Place, passes: list[Any]) -> None:
    g = place.graph(homogeneous(torch.int64))
    x, w = place.put(leaf(13, (2, 4), 1).detach()), own(place.put(leaf(40, (2, 1), 2)))
    with place.standing_in():
        pulled_back(dgl.ops.e_mul_v(g, w, x), w)
    assert passes == [("gsddmm", "mul", "2", "4"), ("gsddmm", "dot", "2", "1")]


def test_sums_come_before_edges(place: Place, passes: list[Any]) -> None:
    g = place.graph(homogeneous(torch.int64))
    x, w = place.put(leaf(13, (2, 4), 1).detach()), own(place.put(leaf(40, (2, 1), 2)))
    with place.standing_in():
        pulled_back(dgl.ops.u_add_e_sum(g, x, w), w)
    assert passes == [("gspmm", "add", "2", "4"), ("gsddmm", "copy_rhs", "2", "1")]


@pytest.mark.parametrize("wanted", ["u", "e"])
def test_gradients_not_asked_for_are_not_computed(
    place: Place, wanted: str, passes: list[Any]
) -> None:
    g = place.graph(homogeneous(torch.int64))
    x, w = place.put(leaf(13, (2, 4), 1).detach()), place.put(leaf(40, (2, 4), 2).detach())
    (x if wanted == "u" else w).requires_grad_()
    with place.standing_in():
        pulled_back(dgl.ops.u_mul_e_sum(g, x, w), x if wanted == "u" else w)
    assert [name for name, *_ in passes] == ["gspmm", "gspmm" if wanted == "u" else "gsddmm"]


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("edge", [(1, 1), (2, 3)], ids=str)
def test_second_derivatives_of_messages(place: Place, reduce: str, edge: tuple[int, ...]) -> None:
    g = place.graph(homogeneous(torch.int64, 5, 12))
    x, w = (place.put(t.detach().double()).requires_grad_() for t in (
        leaf(5, (2, 3), 1), leaf(12, edge, 2),
    ))  # fmt: skip

    def run(x: Tensor, w: Tensor) -> Tensor:
        y = dgl.ops.gspmm(g, "mul", reduce, x, w)
        return torch.where(y.isfinite(), y, 0)

    with place.standing_in():
        assert torch.autograd.gradcheck(run, (x, w))
        assert torch.autograd.gradgradcheck(run, (x, w))


@pytest.mark.parametrize(("op", "targets"), [("dot", "uv"), ("mul", "ue"), ("mul", "ev")])
def test_second_derivatives_on_edges(place: Place, op: str, targets: str) -> None:
    g = place.graph(homogeneous(torch.int64, 5, 12))
    sizes = {"u": 5, "v": 5, "e": 12}
    operands = [
        place.put(leaf(sizes[target], tail, seed).detach().double()).requires_grad_()
        for seed, (target, tail) in enumerate(zip(targets, ((2, 3), (1, 3)), strict=True))
    ]
    with place.standing_in():

        def run(a: Tensor, b: Tensor) -> Tensor:
            return dgl.ops.gsddmm(g, op, a, b, *targets)

        assert torch.autograd.gradcheck(run, operands)
        assert torch.autograd.gradgradcheck(run, operands)


@pytest.mark.parametrize("message", ["u_mul_e", "u_add_e", "copy_u", "copy_e"])
def test_gradients_of_several_relations(place: Place, message: str) -> None:
    def run(g: Any) -> Any:
        g = dgl.edge_type_subgraph(g, ["follows", "likes", "sells"])
        x, w = own(g.nodes["user"].data["x"][:, :1]), {e: own(g.edges[e].data["w"][:, None])
                                                       for e in g.etypes}  # fmt: skip
        by_node, by_edge = {"user": x}, w
        g.ndata["h"], g.edata["h"] = by_node, by_edge
        function = getattr(dgl.function, message)
        fields = ("h", "m") if message.startswith("copy") else ("h", "h", "m")
        g.update_all(function(*fields), dgl.function.sum("m", "y"))
        y = torch.cat([g.nodes[n].data["y"] for n in ("user", "item")])
        leaves = [x] * (message != "copy_e") + list(w.values()) * (message != "copy_u")
        return pulled_back(y, *leaves)

    place.check(run, heterogeneous(torch.int64))


def test_no_edges_hand_no_gradient(place: Place) -> None:
    g = place.graph(homogeneous(torch.int64, 4, 0))
    w = own(place.put(torch.ones(0, 3)))
    with place.standing_in():
        y, grad = pulled_back(dgl.ops.copy_e_max(g, w), w)
    assert y.shape == (4, 3) and grad.shape == (0, 3)


def test_steps_after_the_first_build_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    for name in ("make_splits", "count_splits"):
        stock = getattr(graphs, name)
        monkeypatch.setattr(
            graphs, name, lambda *a, f=stock, **k: built.append(f.__name__) or f(*a, **k)
        )
    for name in ("_transposed", "__init__"):
        stock = getattr(graphs.Graph, name)
        monkeypatch.setattr(
            graphs.Graph, name, lambda *a, f=stock, **k: built.append(f.__name__) or f(*a, **k)
        )
    g = place.graph(homogeneous(torch.int64))
    x, w = (own(place.put(table)) for table in (leaf(13, (2, 4), 1), leaf(40, (1, 1), 2)))

    def step() -> None:
        with place.standing_in():
            pulled_back(dgl.ops.u_mul_e_sum(g, x, w), x, w)
            pulled_back(dgl.ops.copy_u_mean(g, x), x)
            y = dgl.ops.u_dot_v(g, x, x)
            pulled_back(dgl.nn.functional.edge_softmax(g, y, norm_by="src"), x)

    step()
    first, built[:] = list(built), []
    step()
    step()
    assert first.count("_transposed") == 1 and first.count("__init__") == 2
    assert built == []


def test_the_reversal_is_freed_with_the_graph(place: Place) -> None:
    g = place.graph(homogeneous(torch.int64))
    x = own(place.put(leaf(13, (2, 4), 1)))
    gc.disable()  # without cycles, so that device memory does not wait for a collection
    try:
        with place.standing_in():
            pulled_back(dgl.ops.copy_u_sum(g, x), x)
            structure = g._graph.relations[0].graph
            alive = [weakref.ref(one) for one in (structure, structure.reversed())]
            del g, structure
        assert [one() for one in alive] == [None, None]
    finally:
        gc.enable()


def test_a_mean_does_not_ask_for_degrees(place: Place) -> None:
    g = place.graph(homogeneous(torch.int64))
    x = own(place.put(leaf(13, (2, 4), 1)))
    with place.standing_in(), gnn_backend.profile() as profile:
        pulled_back(dgl.ops.copy_u_mean(g, x), x)
    assert profile.by_symbol["dgl.gspmm"].accelerated == 2
    assert profile.fallbacks == 0 and not profile.detours
