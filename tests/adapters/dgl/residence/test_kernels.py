"""Message passing and layers on resident graphs run on the kernels, and give what stock gives."""

from __future__ import annotations

import contextlib
import copy
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import dgl
import dgl.nn.pytorch as dglnn
import pytest
import torch
from dgl import function as fn
from torch import Tensor

import gnn_backend
from gnn_backend import config
from gnn_backend.adapters.dgl import kernels
from gnn_backend.dispatch import Dispatcher, bypass
from gnn_backend.errors import StrictFallbackError, Unsupported
from gnn_backend.ops import reference
from gnn_backend.runtime.sparse import rows
from tests.adapters.dgl.residence.places import Place, featured, heterogeneous, homogeneous


@pytest.fixture(autouse=True)
def short_chunks(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Split rows of more than eight edges, and run the CPU's kernels in the emulator."""
    monkeypatch.setattr(rows, "chunk_of", lambda *_: 8)
    if place.device.type == "cpu" and shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels with")
    with config.override(cpu_target="emulator"):
        yield


def star(idtype: torch.dtype = torch.int64) -> Any:
    """A graph with a hub, whose row is split, a node without in-edges and parallel edges."""
    g = homogeneous(idtype, 13, 40)
    src, dst = g.edges()
    dst[dst == 5] = 4
    dst[:20] = 2
    return featured(dgl.graph((src, dst), num_nodes=13, idtype=idtype))


def check(place: Place, run: Callable[..., Any], *args: Any, used: tuple[str, ...]) -> None:
    """Same results as stock, from kernels alone, each of the operators ``used`` among them."""
    with gnn_backend.profile() as profile:
        place.check(run, *args)
    assert profile.fallbacks == 0, dict(profile.reasons)
    assert sum(profile.launches.values()) > 0
    for name in used:
        assert profile.by_symbol[f"dgl.{name}"].accelerated > 0, list(profile.by_symbol)


def leaf(x: Tensor) -> Tensor:
    """Apart from the graph's own tensor, which a copy of the graph would else depend on."""
    return x.detach().clone().requires_grad_()


def pull_back(y: Tensor) -> Tensor:
    """Backward from weights that differ from element to element."""
    weights = torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape)
    (y * weights).sum().backward()
    return y.detach()


MESSAGES = {
    "copy_u": fn.copy_u("x", "m"), "copy_e": fn.copy_e("w", "m"),
    "u_mul_e": fn.u_mul_e("x", "w", "m"), "u_add_e": fn.u_add_e("x", "w", "m"),
    "u_div_e": fn.u_div_e("x", "w", "m"),
}  # fmt: skip


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("message", MESSAGES)
def test_update_all(place: Place, message: str, reduce: str) -> None:
    def run(g: Any) -> Any:
        g = g.local_var()
        x, w = leaf(g.ndata["x"]), leaf(g.edata["w"][:, None] + 0.5)
        g.ndata["x"], g.edata["w"] = x, w
        g.update_all(MESSAGES[message], getattr(fn, reduce)("m", "y"))
        return pull_back(g.ndata["y"]), x.grad, w.grad

    check(place, run, star(), used=("gspmm",))


@pytest.mark.parametrize("message", ["u_add_v", "u_dot_v", "u_sub_e", "v_mul_e"])
def test_apply_edges(place: Place, message: str) -> None:
    def run(g: Any) -> Any:
        g = g.local_var()
        x = leaf(g.ndata["x"])
        right = leaf(g.edata["w"][:, None]) if message[-1] == "e" else x
        g.ndata["x"], g.edata["x"] = x, right if message[-1] == "e" else g.edata["w"]
        g.apply_edges(getattr(fn, message)("x", "x", "m"))
        return pull_back(g.edata["m"]), x.grad, right.grad

    check(place, run, star(torch.int32), used=("gsddmm", "gspmm"))


@pytest.mark.parametrize("norm_by", ["dst", "src"])
def test_edge_softmax(place: Place, norm_by: str) -> None:
    def run(g: Any, logits: Tensor) -> Any:
        logits = leaf(logits)
        return pull_back(dgl.nn.functional.edge_softmax(g, logits, norm_by=norm_by)), logits.grad

    used = ("edge_softmax", "edge_softmax_backward")
    check(place, run, star(), torch.randn(40, 2), used=used)


@pytest.mark.parametrize("cross", ["sum", "max", "mean"])
def test_several_relations(place: Place, cross: str) -> None:
    def run(g: Any) -> Any:
        g = g.local_var()
        x = {n: leaf(g.nodes[n].data["x"]) for n in ("user", "item")}
        w = leaf(g.edges["likes"].data["w"][:, None])
        for ntype, value in x.items():
            g.nodes[ntype].data["x"] = value
        g.edges["likes"].data["w"] = w
        rel = {
            "follows": (fn.copy_u("x", "m"), fn.sum("m", "y")),
            "likes": (fn.u_mul_e("x", "w", "m"), fn.mean("m", "y")),
            "sells": (fn.copy_u("x", "m"), fn.max("m", "y")),
        }
        g.multi_update_all(rel, cross)
        pull_back(torch.cat([g.nodes[n].data["y"] for n in x]))
        return {n: g.nodes[n].data["y"].detach() for n in x}, x["user"].grad, w.grad

    check(place, run, heterogeneous(torch.int64), used=("gspmm", "gsddmm"))


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_all_relations_at_once(place: Place, reduce: str) -> None:
    def run(g: Any) -> Any:
        g = dgl.edge_type_subgraph(g, ["follows", "likes", "sells"]).local_var()
        x = leaf(g.nodes["user"].data["x"])
        g.nodes["user"].data["x"] = x
        g.update_all(fn.copy_u("x", "m"), getattr(fn, reduce)("m", "y"))
        pull_back(torch.cat([g.nodes[n].data["y"] for n in ("user", "item")]))
        return {n: g.nodes[n].data["y"].detach() for n in ("user", "item")}, x.grad

    check(place, run, heterogeneous(torch.int64), used=("gspmm",))


LAYERS = {
    "GraphConv": (lambda: dglnn.GraphConv(3, 4, allow_zero_in_degree=True), ("GraphConv",)),
    "GraphConv, weights": (
        lambda: dglnn.GraphConv(3, 4, allow_zero_in_degree=True), ("GraphConv",),
    ),
    "SAGEConv mean": (lambda: dglnn.SAGEConv(3, 4, "mean"), ("SAGEConv",)),
    "SAGEConv pool": (lambda: dglnn.SAGEConv(3, 4, "pool"), ("SAGEConv",)),
    "GATConv": (lambda: dglnn.GATConv(3, 4, 2, allow_zero_in_degree=True), ("GATConv",)),
    "GINConv": (lambda: dglnn.GINConv(torch.nn.Linear(3, 4), "max"), ("GINConv",)),
    "EdgeConv": (lambda: dglnn.EdgeConv(3, 4, allow_zero_in_degree=True), ("gspmm", "gsddmm")),
    "DotGatConv": (
        lambda: dglnn.DotGatConv(3, 4, 2, allow_zero_in_degree=True), ("DotGatConv",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS)
def test_layers(place: Place, layer: str) -> None:
    torch.manual_seed(0)
    make, used = LAYERS[layer]
    model = make()

    def run(g: Any) -> Any:
        conv, x = copy.deepcopy(model).to(g.device), leaf(g.ndata["x"])
        extra, w = {}, leaf(g.edata["w"])
        if "weights" in layer:
            extra = {"edge_weight": w}
        y = pull_back(conv(g, x, **extra))
        return y, x.grad, w.grad, [p.grad for p in conv.parameters()]

    check(place, run, star(), used=used)


@pytest.mark.parametrize("regularizer", ["basis", "bdd"])
@pytest.mark.parametrize("ordered", [False, True], ids=["mixed", "sorted"])
def test_relational_layer(place: Place, regularizer: str, ordered: bool) -> None:
    torch.manual_seed(0)
    model = dglnn.RelGraphConv(4, 4, 3, regularizer, 2)

    def run(g: Any, x: Tensor, etypes: Tensor) -> Any:
        conv, x = copy.deepcopy(model).to(g.device), leaf(x)
        y = pull_back(conv(g, x, etypes, presorted=ordered))
        return y, x.grad, [p.grad for p in conv.parameters()]

    etypes = torch.randint(0, 3, (40,))
    etypes = etypes.sort().values if ordered else etypes
    check(place, run, star(), torch.randn(13, 4), etypes, used=("RelGraphConv",))


@pytest.mark.parametrize("gathered", [False, True])
def test_typed_products(place: Place, gathered: bool) -> None:
    """The products that DGL calls for tensors on the device, against one product a row."""
    from dgl.backend.pytorch import sparse

    torch.manual_seed(0)
    x, weight = (torch.randn(*s, device=place.device).requires_grad_() for s in ((9, 3), (2, 3, 4)))
    types = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 1])
    types = (types if gathered else types.sort().values).to(place.device)
    source = torch.tensor([3, 3, 8, 0, 1, 2, 5, 5, 3, 7, 6], device=place.device)
    rows = x[source] if gathered else torch.cat([x, x[:2]])
    wanted = torch.bmm(rows[:, None], weight[types])[:, 0]
    with place.standing_in(), gnn_backend.profile() as profile:
        if gathered:
            found = sparse.GATHERMM.apply(x, weight, source, types)
        else:
            found = sparse.SEGMENTMM.apply(torch.cat([x, x[:2]]), weight, types.bincount().cpu())
        torch.testing.assert_close(found, wanted)
        ours = torch.autograd.grad(found.pow(2).sum(), (x, weight))
    stock = torch.autograd.grad(wanted.pow(2).sum(), (x, weight))
    torch.testing.assert_close(ours, stock)
    used = ("gather_mm", "gather_mm_scatter") if gathered else ("segment_mm",)
    assert all(profile.by_symbol[f"dgl.{name}"].accelerated > 0 for name in used)
    assert profile.fallbacks == 0


def test_segments(place: Place) -> None:
    def run(x: Tensor, lengths: Tensor) -> Any:
        x = leaf(x)
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        found = [dgl.ops.segment_reduce(lengths, x, reducer=r) for r in ("sum", "mean", "max")]
        found += [dgl.backend.segment_reduce(r, x, offsets)[[0, 2, 3]] for r in ("sum", "max")]
        pull_back(torch.cat(found))
        return [y.detach() for y in found], x.grad

    used = ("readout", "segment_reduce", "segment_reduce_backward")
    check(place, run, torch.randn(30, 3), torch.tensor([20, 0, 3, 7]), used=used)


def dense(g: Any, weight: Tensor) -> Tensor:
    """The adjacency matrix, as stock and we number its edges differently."""
    src, dst = g.edges()
    where = (src.long(), dst.long())
    return weight.new_zeros(g.num_src_nodes(), g.num_dst_nodes()).index_put(
        where, weight, accumulate=True
    )


def test_products_of_adjacency_matrices(place: Place) -> None:
    """No kernels of ours, but torch's products, of graphs without parallel edges."""

    def run(a: Any, b: Any, c: Any) -> Any:
        a, b, c = (g.local_var() for g in (a, b, c))
        for g in (a, b, c):
            g.edata["w"] = leaf(g.edata["w"])
        product, total = dgl.adj_product_graph(a, b, "w"), dgl.adj_sum_graph([a, c], "w")
        found = [dense(g, g.edata["w"]) for g in (product, total)]
        sum(y.pow(2).sum() for y in found).backward()  # type: ignore[union-attr]
        return [y.detach() for y in found], [g.edata["w"].grad for g in (a, b, c)]

    def graph(types: str, sizes: tuple[int, int], seed: int) -> Any:
        taken = torch.randperm(sizes[0] * sizes[1], generator=torch.Generator().manual_seed(seed))
        ends = tuple(torch.unravel_index(taken[:20], sizes))
        counts = dict(zip(types, sizes, strict=True))
        return featured(dgl.heterograph({(types[0], "to", types[1]): ends}, counts))

    graphs = graph("ab", (7, 5), 0), graph("bc", (5, 6), 1), graph("ab", (7, 5), 2)
    place.check(run, *graphs)


@pytest.mark.parametrize("aggregator", ["sum", "mean"])
def test_multigraphs(place: Place, aggregator: str) -> None:
    def run(g: Any) -> Any:
        return dgl.to_simple(g, copy_edata=True, aggregator=aggregator)

    check(place, run, star(), used=("scatter_add",))
    g = star()
    g.edata["n"] = torch.arange(40)
    place.check(run, g)  # both refuse integers


@pytest.mark.parametrize("bypassing", [False, True], ids=["kernel", "plain"])
def test_nan_never_wins(place: Place, bypassing: bool) -> None:
    """As in DGL, whichever code answers."""

    def run(g: Any, x: Tensor) -> Any:
        return dgl.ops.copy_u_max(g, x), dgl.ops.copy_u_min(g, x)

    x = torch.randn(13, 3)
    x[2:9] = torch.nan
    with bypass() if bypassing else contextlib.nullcontext():
        place.check(run, star(), x)


def test_verification_compares_with_plain_torch(place: Place, monkeypatch: Any) -> None:
    g = place.graph(star())
    with place.standing_in(), gnn_backend.enabled(hosts="dgl", mode="verify"):
        dgl.ops.copy_u_max(g, g.ndata["x"])

        def wrong(*args: Any, **kwargs: Any) -> Any:
            out, *arguments = reference.gspmm(*args, **kwargs)
            return out + 1, *arguments

        replacement = Dispatcher("dgl.gspmm", lambda *_, **__: None, wrong, switch="dgl.residence")
        monkeypatch.setitem(kernels.OPERATORS, "gspmm", replacement(reference.gspmm))
        with pytest.raises(gnn_backend.errors.VerificationError, match=r"dgl\.gspmm"):
            dgl.ops.copy_u_max(g, g.ndata["x"])


def test_strict_mode_refuses_plain_torch(place: Place, monkeypatch: Any) -> None:
    def absent(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported("no-cupy")

    replacement = Dispatcher("dgl.gspmm", lambda *_, **__: None, absent, switch="dgl.residence")
    monkeypatch.setitem(kernels.OPERATORS, "gspmm", replacement(reference.gspmm))
    g = place.graph(star())
    strict = gnn_backend.enabled(hosts="dgl", mode="strict")
    with place.standing_in(), strict, pytest.raises(StrictFallbackError, match="no-cupy"):
        dgl.ops.copy_u_sum(g, g.ndata["x"])
