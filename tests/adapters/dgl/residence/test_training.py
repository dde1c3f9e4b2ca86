"""Scripts of message passing on a resident graph, against the same on a stock one."""

from __future__ import annotations

import copy
from typing import Any

import dgl
import dgl.nn.pytorch as dglnn
import pytest
import torch
from dgl import function as fn
from torch import nn
from torch.nn import functional

import gnn_backend
from gnn_backend.adapters.dgl import kernels
from gnn_backend.dispatch import Dispatcher, bypass
from gnn_backend.errors import Unsupported
from gnn_backend.ops import reference
from tests.adapters.dgl.residence.places import (
    CUDA,
    Place,
    ends,
    featured,
    graphs,
    heterogeneous,
    homogeneous,
)

pytestmark = pytest.mark.sampled(2)


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = dglnn.GraphConv(3, 8), dglnn.GraphConv(8, 4)

    def forward(self, g: Any, x: Any) -> Any:
        return self.second(g, functional.relu(self.first(g, x)))


class GAT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = dglnn.GATConv(3, 4, 2), dglnn.GATConv(8, 4, 1)

    def forward(self, g: Any, x: Any) -> Any:
        return self.second(g, functional.elu(self.first(g, x).flatten(1))).mean(1)


class Sage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = dglnn.SAGEConv(3, 8, "pool"), dglnn.SAGEConv(8, 4, "lstm")

    def forward(self, g: Any, x: Any) -> Any:
        return self.second(g, functional.relu(self.first(g, x)))


class GATv2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = dglnn.GATv2Conv(3, 4, 2), dglnn.GATv2Conv(8, 4, 1)

    def forward(self, g: Any, x: Any) -> Any:
        return self.second(g, functional.elu(self.first(g, x).flatten(1))).mean(1)


def train(g: Any, model: nn.Module, steps: int = 5) -> list[float]:
    """Losses of a few steps; labels from the features."""
    g = dgl.add_self_loop(g)
    x = g.ndata["x"]
    labels = (x.sum(1) > 0).long() + 2 * (x[:, 0] > 0).long()
    model = copy.deepcopy(model).to(x.device)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(g, x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("model", [GCN, GAT, Sage, GATv2])
@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_training(place: Place, model: Any, idtype: torch.dtype) -> None:
    torch.manual_seed(0)
    g, start = homogeneous(idtype, 30, 120), model()
    with gnn_backend.disabled():
        wanted = train(g, start)
    with place.standing_in(), gnn_backend.profile() as profile:
        found = train(place.graph(g), start)
    assert found == pytest.approx(wanted, rel=1e-4)
    assert found[-1] < found[0]
    assert not profile.detours
    attention = profile.by_symbol.get("dgl.GATv2Conv")
    assert (attention.accelerated if attention else 0) == (10 if model is GATv2 else 0)
    if place.device.type == "cpu":  # where the operators have kernels for the emulator alone
        assert set(profile.reasons) <= {"cpu-operators", "cpu-sums", "aggregation"}
    else:
        assert set(profile.reasons) <= {"aggregation"}  # of the LSTM


MESSAGES = {
    "copy_u": fn.copy_u("x", "m"), "copy_e": fn.copy_e("w", "m"),
    "u_mul_e": fn.u_mul_e("x", "w", "m"),
    "u_add_v": fn.u_add_v("x", "x", "m"), "u_sub_e": fn.u_sub_e("x", "w", "m"),
    "u_div_e": fn.u_div_e("x", "w", "m"), "v_mul_e": fn.v_mul_e("x", "w", "m"),
    "u_dot_v": fn.u_dot_v("x", "x", "m"),
}  # fmt: skip
REDUCES = {"sum": fn.sum, "mean": fn.mean, "max": fn.max, "min": fn.min}


def updated(g: Any, message: Any, reduce: Any) -> Any:
    """Result and gradients of one ``update_all``."""
    g = g.local_var()
    etype = g.canonical_etypes[0]
    x = {n: g.nodes[n].data["x"].double().requires_grad_() for n in (etype[0], etype[2])}
    w = (g.edges[etype].data["w"].double()[:, None] + 0.5).requires_grad_()
    for ntype, value in x.items():
        g.nodes[ntype].data["x"] = value
    g.edges[etype].data["w"] = w
    g.update_all(message, reduce("m", "y"), etype=etype)
    y = g.nodes[etype[2]].data["y"]
    (y * torch.arange(y.numel(), device=y.device).view(y.shape)).sum().backward()
    return y.detach(), [v.grad for v in x.values()], w.grad


@graphs()
@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("message", MESSAGES)
def test_messages(place: Place, kind: Any, idtype: torch.dtype, message: str, reduce: str) -> None:
    g = kind(idtype)
    if g.num_nodes(g.canonical_etypes[0][0]) == 0:
        pytest.skip("stock fails on a graph without nodes")
    empty = g.num_edges(g.canonical_etypes[0]) == 0
    if empty and reduce in ("max", "min") and message != "copy_u":
        pytest.skip("stock looks for the winners among no edges")
    place.check(lambda g: updated(g, MESSAGES[message], REDUCES[reduce]), g)


def test_user_defined_functions(place: Place) -> None:
    def run(g: Any) -> Any:
        g = g.local_var()
        g.update_all(lambda edges: {"m": edges.src["x"] + edges.data["w"][:, None]},
                     lambda nodes: {"y": nodes.mailbox["m"].logsumexp(1)})  # fmt: skip
        g.apply_edges(lambda edges: {"z": edges.src["x"] * edges.dst["x"]})
        g.apply_nodes(lambda nodes: {"x": nodes.data["x"] * 2}, v=g.nodes()[:3])
        g.send_and_recv(g.edges()[0][:0].new_tensor([0, 3]), fn.copy_u("x", "m"), fn.sum("m", "q"))
        g.pull(g.nodes()[2:5], fn.copy_u("x", "m"), fn.max("m", "p"))
        g.push(g.nodes()[:2], fn.copy_u("x", "m"), fn.mean("m", "r"))
        return dict(g.ndata), dict(g.edata)

    place.check(run, homogeneous(torch.int64))


@pytest.mark.parametrize("cross", ["sum", "max", "min", "mean", "stack"])
def test_several_relations(place: Place, cross: str) -> None:
    def run(g: Any) -> Any:
        g = g.local_var()
        rel = {
            "follows": (fn.copy_u("x", "m"), fn.sum("m", "y")),
            "likes": (fn.u_mul_e("x", "w", "m"), fn.mean("m", "y")),
            "sells": (fn.copy_u("x", "m"), fn.max("m", "y")),
            "liked by": (fn.copy_u("x", "m"), fn.sum("m", "y")),
        }
        g.multi_update_all(rel, cross)
        return {n: g.nodes[n].data["y"] for n in ("user", "item")}

    place.check(run, heterogeneous(torch.int64))


@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
def test_all_relations_at_once(place: Place, reduce: str) -> None:
    def run(g: Any) -> Any:
        g = dgl.edge_type_subgraph(g, ["follows", "likes", "sells"]).local_var()
        x = {n: g.nodes[n].data["x"].double().requires_grad_() for n in g.ntypes}
        for ntype, value in x.items():
            g.nodes[ntype].data["x"] = value
        g.update_all(fn.copy_u("x", "m"), getattr(fn, reduce)("m", "y"))
        total = sum((g.nodes[n].data["y"] ** 2).sum() for n in g.ntypes)
        total.backward()
        return {n: g.nodes[n].data["y"].detach() for n in g.ntypes}, x["user"].grad

    place.check(run, heterogeneous(torch.int64))


def test_winners_of_several_types(place: Place) -> None:
    """Ids of one type's winners are beyond the other's rows."""

    def run(g: Any) -> Any:
        x = {n: g.nodes[n].data["x"].double().requires_grad_() for n in g.ntypes}
        with g.local_scope():
            for ntype, value in x.items():
                g.nodes[ntype].data["x"] = value
            g.update_all(fn.copy_u("x", "m"), fn.max("m", "y"))
            g.nodes["c"].data["y"].pow(2).sum().backward()
        return [value.grad for value in (x["a"], x["b"])]

    data = {
        ("a", "r", "c"): ends(3, 5, 12, torch.int64),
        ("b", "s", "c"): ends(40, 5, 90, torch.int64),
    }
    g = featured(dgl.heterograph(data, {"a": 3, "b": 40, "c": 5}))
    place.check(run, g)


def test_the_table_of_operators(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function in the table runs, and the reference where it is not up to the call."""
    dtypes = []

    def without_double(graph: Any, op: str, reduce: str, u: Any, e: Any, **kwargs: Any) -> Any:
        dtypes.append(u.dtype)
        if u.dtype == torch.float64:
            raise Unsupported("dtype-float64")
        return reference.gspmm(graph, op, reduce, 2 * u, e, **kwargs)

    dispatcher = Dispatcher(
        "dgl.gspmm", lambda *_, **__: None, without_double, switch="dgl.residence"
    )
    monkeypatch.setitem(kernels.OPERATORS, "gspmm", dispatcher(reference.gspmm))
    g = place.graph(homogeneous(torch.int64))
    x, degree = g.ndata["x"], g.in_degrees()[:, None]
    with place.standing_in(), gnn_backend.profile() as profile:
        single = dgl.ops.copy_u_sum(g, torch.ones_like(x))
        double = dgl.ops.copy_u_sum(g, torch.ones_like(x).double())
        with bypass():
            reference_run = dgl.ops.copy_u_sum(g, torch.ones_like(x))
    assert torch.equal(single, 2.0 * degree.expand_as(x))
    assert torch.equal(double, degree.double().expand_as(x))
    assert torch.equal(reference_run, degree.float().expand_as(x))
    assert dtypes == [torch.float32, torch.float64]
    stats = profile.by_symbol["dgl.gspmm"]
    assert (stats.accelerated, dict(stats.reasons)) == (1, {"dtype-float64": 1})


@pytest.mark.parametrize("norm_by", ["dst", "src"])
def test_edge_softmax(place: Place, norm_by: str) -> None:
    def run(g: Any, scores: Any, eids: Any) -> Any:
        found = []
        for chosen in (None, eids):
            picked = scores if chosen is None else scores[chosen]
            picked = picked.clone().requires_grad_()
            extra = {} if chosen is None else {"eids": chosen}
            a = dgl.nn.functional.edge_softmax(g, picked, norm_by=norm_by, **extra)
            (a * a.detach().cumsum(0)).sum().backward()
            found += [a.detach(), picked.grad]
        return found

    scores = torch.randn(40, 2, dtype=torch.float64)
    place.check(run, homogeneous(torch.int64), scores, torch.tensor([3, 1, 8, 30, 9]))


def test_second_derivative_of_edge_softmax(place: Place) -> None:
    def run(g: Any, scores: Any) -> Any:
        scores = scores.clone().requires_grad_()
        a = dgl.nn.functional.edge_softmax(g, scores)
        (first,) = torch.autograd.grad((a**3).sum(), scores, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum(), scores)
        return first.detach(), second

    scores = torch.randn(40, 2, dtype=torch.float64)
    g = homogeneous(torch.int64)
    found = place.run(run, g, scores)
    dst = g.edges()[1]

    def dense(scores: torch.Tensor) -> torch.Tensor:
        weight = scores.exp()
        total = torch.zeros(13, 2, dtype=torch.float64).index_add(0, dst, weight)
        return ((weight / total[dst]) ** 3).sum()

    first, second = (torch.autograd.functional.jacobian(dense, scores), found[1])
    torch.testing.assert_close(found[0].cpu(), first)
    squared = lambda s: (torch.autograd.functional.jacobian(dense, s, create_graph=True) ** 2).sum()  # noqa: E731
    torch.testing.assert_close(second.cpu(), torch.autograd.functional.jacobian(squared, scores))


def test_segments_and_typed_products(place: Place) -> None:
    def run(a: Any, weight: Any, lengths: Any, types: Any) -> Any:
        a, weight = a.clone().requires_grad_(), weight.clone().requires_grad_()
        found = [
            dgl.ops.segment_mm(a, weight, lengths.cpu()),
            dgl.ops.gather_mm(a, weight, idx_b=types),
        ]
        found += [dgl.ops.segment_reduce(lengths, a, reducer=r) for r in ("sum", "mean", "max")]
        sum((f**2).sum() for f in found).backward()
        return [f.detach() for f in found], a.grad, weight.grad

    torch.manual_seed(0)
    place.check(
        run, torch.randn(12, 5), torch.randn(3, 5, 4), torch.tensor([4, 0, 8]),
        torch.randint(0, 3, (12,)),
    )  # fmt: skip


def test_hetero_graph_conv(place: Place) -> None:
    torch.manual_seed(0)
    conv = dglnn.HeteroGraphConv(
        {
            "follows": dglnn.GraphConv(3, 4, allow_zero_in_degree=True),
            "likes": dglnn.GATConv((3, 3), 4, 1, allow_zero_in_degree=True),
            "sells": dglnn.SAGEConv((3, 3), 4, "mean"),
        },
        aggregate="sum",
    )
    relational = dglnn.RelGraphConv(3, 4, 4, "basis", 2)

    def run(g: Any) -> Any:
        model = copy.deepcopy(conv).to(g.device)
        parts = dgl.edge_type_subgraph(g, ["follows", "likes", "sells"])
        y = model(parts, {n: parts.nodes[n].data["x"] for n in parts.ntypes})
        flat = dgl.to_homogeneous(g, ndata=["x"])
        x = flat.ndata["x"]
        z = copy.deepcopy(relational).to(g.device)(flat, x, flat.edata[dgl.ETYPE] % 4)
        return {n: v.detach().flatten(1) for n, v in y.items()}, z.detach()

    place.check(run, heterogeneous(torch.int64))


@pytest.mark.gpu
def test_autocast_on_the_device() -> None:
    """Half-precision features reach the operators, and gradients come back in the leaves' dtype."""
    gnn_backend.enable(hosts="dgl")
    g = CUDA.graph(homogeneous(torch.int64))
    x = g.ndata["x"].clone().requires_grad_()
    w = g.edata["w"][:, None].clone().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        y = dgl.ops.u_mul_e_sum(g, x, w)
        a = dgl.nn.functional.edge_softmax(g, w)
    assert y.dtype == a.dtype == torch.bfloat16
    (y.float().sum() + a.float().pow(2).sum()).backward()
    assert x.grad.dtype == w.grad.dtype == torch.float32
    exact = dgl.ops.u_mul_e_sum(g, x, w)
    torch.testing.assert_close(y.float(), exact, rtol=0.05, atol=0.05)
