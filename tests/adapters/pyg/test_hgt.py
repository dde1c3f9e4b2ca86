"""``HGTConv``: output and all gradients as stock, over all relations at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gnn_backend
from gnn_backend import config
from gnn_backend.adapters.pyg.unions import unions

pytest.importorskip("torch_geometric")
from torch_geometric.nn import HGTConv

from tests.adapters.dgl.aggregation import name
from tests.adapters.grid.covering import pairwise
from tests.adapters.hetero import operations, randomized
from tests.adapters.pyg.helpers import assert_equal, gradients, normal
from tests.adapters.relational import check, in_torch

__all__ = ["in_torch"]

SIZES = {"a": 14, "b": 9, "c": 5}
RELATIONS = [("a", "r0", "a"), ("a", "r1", "b"), ("b", "r2", "a"), ("c", "r3", "b"),
             ("a", "r4", "b")]  # fmt: skip
OUT = 8
ALL = [*SIZES], RELATIONS
CHOICES: dict[str, list[Any]] = {
    "heads": [1, 2, 8],
    "widths": ["as the result", "equal", "different"],
    "lacking": [(), ("c",), ("r1", "r2")],
    "order": ["given", "reversed"],
    "form": ["list", "coo", "csr"],
    "dtype": [torch.float32, torch.float64],
}
WIDTHS = {
    "as the result": dict.fromkeys(SIZES, OUT),
    "equal": dict.fromkeys(SIZES, 6),
    "different": {"a": OUT, "b": 5, "c": 5},
}
FORMS: dict[str, Callable[[Tensor, tuple[int, int]], Tensor]] = {
    "list": lambda edges, _: edges,
    "coo": lambda edges, sizes: _adjacency(edges, sizes),
    "csr": lambda edges, sizes: _adjacency(edges, sizes).to_sparse_csr(),
}


def _adjacency(edges: Tensor, sizes: tuple[int, int]) -> Tensor:
    """Transposed, as PyG takes it; edges that are there twice are one."""
    ones = torch.ones(edges.shape[1])
    return torch.sparse_coo_tensor(
        edges.flip(0), ones, sizes[::-1], check_invariants=True
    ).coalesce()


def edges(form: str = "list", count: int = 20) -> dict[Any, Tensor]:
    """Edges of each relation; r3 has none, and the last node of b no in-edge."""
    generator = torch.Generator().manual_seed(4)
    found = {}
    for source, relation, target in RELATIONS:
        many = 0 if relation == "r3" else count
        last = SIZES[target] - (target == "b")
        ends = [torch.randint(n, (many,), generator=generator) for n in (SIZES[source], last)]
        sizes = SIZES[source], SIZES[target]
        found[source, relation, target] = FORMS[form](torch.stack(ends), sizes)
    return found


class OneTensor(nn.Module):
    """A layer of features by type, whose results come as one tensor."""

    def __init__(self, layer: nn.Module, graph: dict[Any, Tensor], names: list[str]) -> None:
        super().__init__()
        self.layer, self.graph, self.names = layer, graph, names

    def forward(self, *features: Tensor) -> Tensor:
        out = self.layer(dict(zip(self.names, features, strict=True)), self.graph)
        return torch.cat([part.flatten() for part in out.values()])


def without(lacking: tuple[str, ...], graph: dict[Any, Tensor]) -> dict[Any, Tensor]:
    return {k: e for k, e in graph.items() if not set(k) & set(lacking)}


def features(widths: dict[str, int], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {n: normal(SIZES[n], w, seed=i, dtype=dtype) for i, (n, w) in enumerate(widths.items())}


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("in_torch")
@pytest.mark.parametrize("c", pairwise(CHOICES, lambda c: True), ids=name)
def test_equals_stock(c: dict[str, Any]) -> None:
    widths = WIDTHS[c["widths"]]
    conv = randomized(HGTConv(widths, OUT, ALL, heads=c["heads"])).to(c["dtype"])
    x = {n: t for n, t in features(widths, c["dtype"]).items() if n not in c["lacking"]}
    if c["order"] == "reversed":
        x = dict(reversed(x.items()))
    layer = OneTensor(conv, without(c["lacking"], edges(c["form"])), [*x])
    check("pyg", layer, *x.values())


def test_on_the_kernels_of_the_cpu() -> None:
    conv = randomized(HGTConv(OUT, OUT, ALL, heads=2))
    check("pyg", OneTensor(conv, edges(), [*SIZES]), *features(WIDTHS["as the result"]).values())


def test_on_the_emulator() -> None:
    conv = randomized(HGTConv(OUT, OUT, ALL, heads=2))
    layer = OneTensor(conv, edges(count=8), [*SIZES])
    with config.override(cpu_target="emulator"):
        check("pyg", layer, *features(WIDTHS["as the result"]).values())


@pytest.mark.usefixtures("in_torch")
def test_relations_in_another_order_than_the_layers() -> None:
    """Stock takes the weights of other relations then."""
    conv, x, graph = randomized(HGTConv(OUT, OUT, ALL)), features(WIDTHS["as the result"]), edges()
    want = conv(x, graph)
    with gnn_backend.enabled(hosts="pyg", mode="strict"):
        got = conv(x, dict(reversed(graph.items())))
    for kind, expected in want.items():
        torch.testing.assert_close(got[kind], expected)


@pytest.mark.usefixtures("in_torch")
def test_widths_are_found_at_the_first_call() -> None:
    x, graph, found = features(WIDTHS["different"]), edges(), []
    for mode in ("stock", "strict"):
        torch.manual_seed(0)
        conv = HGTConv(-1, OUT, ALL, heads=2)
        with gnn_backend.disabled() if mode == "stock" else gnn_backend.enabled(mode=mode):
            found.append((conv(x, graph), conv.state_dict()))
    (want, theirs), (got, ours) = found
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)
    for kind, expected in want.items():
        torch.testing.assert_close(got[kind], expected)


@pytest.mark.usefixtures("in_torch")
def test_watched_linear_modules_are_called() -> None:
    conv, x, graph = randomized(HGTConv(OUT, OUT, ALL)), features(WIDTHS["as the result"]), edges()
    want, seen = conv(x, graph), []
    for linear in (conv.kqv_lin, conv.out_lin.lins["a"]):
        linear.register_forward_hook(lambda module, *_: seen.append(module))
    with gnn_backend.enabled(hosts="pyg", include="HGTConv", mode="strict"):
        got = conv(x, graph)
    assert seen == [conv.kqv_lin, conv.out_lin.lins["a"]]
    torch.testing.assert_close(got, want)


@pytest.mark.usefixtures("in_torch")
def test_operations_do_not_grow_with_relations(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for number in (4, 60):
        kinds = [("ab"[r % 2], f"r{r}", "ab"[r // 2 % 2]) for r in range(number)]
        conv = randomized(HGTConv(OUT, OUT, (["a", "b"], kinds), heads=2))
        x = features({"a": OUT, "b": OUT})
        graph = {k: torch.randint(9, (2, 12)) for k in kinds}

        def step(conv: Any = conv, x: Any = x, graph: Any = graph) -> None:
            loss = sum(out.sum() for out in conv(x, graph).values())
            torch.autograd.grad(loss, [*conv.parameters()])

        with gnn_backend.enabled(hosts="pyg", mode="strict"):
            step()  # what is kept with the edges is made
            counts.append(operations(step, monkeypatch)[1])
    few, many = counts
    assert few == many, {n: (few[n], many[n]) for n in few | many if few[n] != many[n]}
    assert few["typed_linear"]


@pytest.mark.usefixtures("in_torch")
def test_narrow_indices() -> None:
    """Of which stock's gradients are wrong, though its results are not."""
    conv = randomized(HGTConv(OUT, OUT, ALL)).double()
    x = features(WIDTHS["as the result"], torch.float64)
    want = gradients(OneTensor(conv, edges(), [*SIZES]), *x.values())
    narrow = {k: e.int() for k, e in edges().items()}
    with gnn_backend.enabled(hosts="pyg", mode="strict"):
        got = gradients(OneTensor(conv, narrow, [*SIZES]), *x.values())
    assert_equal(got, want)


class Doubled(HGTConv):
    def message(self, v_j: Tensor, **given: Any) -> Tensor:
        return 2 * v_j


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: HGTConv(OUT, OUT, ALL, flow="target_to_source"), "flow"),
        (lambda: HGTConv(OUT, OUT, ALL).double(), "dtype-mixed"),
        (lambda: Doubled(OUT, OUT, ALL), "overridden-message"),
    ],
)
def test_falls_back(make: Callable[[], nn.Module], reason: str) -> None:
    from gnn_backend.adapters.pyg import hgt

    assert hgt.eligible(make(), features(WIDTHS["as the result"]), edges()) == reason


def test_without_edges_stock_answers() -> None:
    graph = {k: e[:, :0] for k, e in edges().items()}
    conv = HGTConv(OUT, OUT, ALL)
    with gnn_backend.enabled(hosts="pyg", include="HGTConv"), gnn_backend.profile() as profile:
        conv(features(WIDTHS["as the result"]), graph)
    assert dict(profile.reasons) == {"empty": 1}


@pytest.mark.usefixtures("in_torch")
def test_what_a_fused_layer_holds_is_not_reported_by_itself() -> None:
    conv, x, graph = HGTConv(OUT, OUT, ALL), features(WIDTHS["as the result"]), edges()
    found = gnn_backend.explain(conv, x, graph)
    assert [(layer.name, layer.symbol) for layer in found.layers] == [("", "pyg.HGTConv")]
    assert found.accelerated


@pytest.mark.usefixtures("in_torch")
def test_an_edited_edge_is_seen() -> None:
    conv, x, graph = randomized(HGTConv(OUT, OUT, ALL)), features(WIDTHS["as the result"]), edges()
    unions.clear()
    with gnn_backend.enabled(hosts="pyg", mode="strict"):
        conv(x, graph)
        assert unions.nbytes() > 0
        graph[RELATIONS[0]][0] = 3
        got = conv(x, graph)
    torch.testing.assert_close(got, conv(x, graph))
