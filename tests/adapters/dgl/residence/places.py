"""Where a graph is resident in a test, and graphs of every kind to compare with stock DGL."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("dgl", reason="DGL is not installed")
import dgl

import gnn_backend
from gnn_backend.adapters.dgl.residence.index import ResidentIndex
from gnn_backend.config import config, override
from gnn_backend.profile import Profile


@dataclasses.dataclass(frozen=True)
class Place:
    """A device, or the CPU in its place."""

    name: str
    device: torch.device

    @contextlib.contextmanager
    def standing_in(self) -> Iterator[None]:
        """Everything inside is resident, as long as it is made here."""
        with override(residence_standin=self.device.type == "cpu"):
            yield

    def graph(self, g: Any) -> Any:
        """The resident copy of a stock graph."""
        with self.standing_in():
            there = self.device if self.device.type == "cuda" else None
            if there is not None:
                made = g.to(there)
            else:
                made = g.local_var()
                made._graph = g._graph.copy_to(dgl.utils.to_dgl_context(self.device))
            assert type(made._graph) is ResidentIndex
            return made

    def put(self, value: Any) -> Any:
        """The same value with tensors and graphs on the device."""
        return _apply(value, self.graph, lambda tensor: tensor.to(self.device))

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call with resident copies of the arguments."""
        with self.standing_in():
            return function(*self.put(args))

    def check(
        self, function: Callable[..., Any], *args: Any, detours: int = 0, on_cpu: bool = False
    ) -> Any:
        """Call on stock and on resident arguments; both must give the same, or both raise.

        With ``on_cpu`` the result is to be on the CPU, where DGL has it for graphs on CUDA too.
        """
        wanted, error = _outcome(function, *args)
        with self.standing_in(), gnn_backend.profile() as profile:
            there = self.put(args)
            found, ours = _outcome(function, *there)
        assert (error is None) == (ours is None), f"stock: {error!r}, resident: {ours!r}"
        assert sum(profile.detours.values()) <= detours, dict(profile.detours)
        if error is None:
            assert_same(found, wanted, torch.device("cpu") if on_cpu else self.device)
            return found
        assert isinstance(ours, (dgl.DGLError, type(error))), repr(ours)
        return None


class CpuAlone:
    """DGL's backend as its functions for the CPU alone see it: the stand-in is not the CPU."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def cpu(self) -> torch.device:
        return torch.device("meta" if config.residence_standin else "cpu")


STANDIN = Place("standin", torch.device("cpu"))
CUDA = Place("cuda", torch.device("cuda", 0))


def _outcome(function: Callable[..., Any], *args: Any) -> tuple[Any, Exception | None]:
    try:
        return function(*args), None
    except Exception as error:
        return None, error


def _apply(value: Any, graph: Callable[[Any], Any], tensor: Callable[[Any], Any]) -> Any:
    if isinstance(value, dgl.DGLGraph):
        return graph(value)
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_apply(item, graph, tensor) for item in value)
    if isinstance(value, dict):
        return {key: _apply(item, graph, tensor) for key, item in value.items()}
    return value


def assert_same(found: Any, wanted: Any, device: torch.device) -> None:
    """The same values, dtypes and structure, and on ``device`` what stock has on the CPU."""
    if isinstance(wanted, dgl.DGLGraph):
        assert_same_graph(found, wanted, device)
    elif isinstance(wanted, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert found.device == device, f"on {found.device}"
        assert found.dtype == wanted.dtype
        if wanted.is_floating_point():
            torch.testing.assert_close(found.cpu(), wanted)
        elif wanted.layout != torch.strided:
            assert torch.equal(found.cpu().to_dense(), wanted.to_dense())
        else:
            assert torch.equal(found.cpu(), wanted), f"{found} is not {wanted}"
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-5)
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other, device)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            assert_same(found[key], value, device)
    else:
        assert found == wanted


def assert_same_graph(found: Any, wanted: Any, device: torch.device) -> None:
    """Same types, nodes, edges in the order of their ids, and features."""
    assert type(found) is type(wanted)
    assert type(found._graph) is ResidentIndex, "not resident"
    assert found.device == device and found.idtype == wanted.idtype
    assert (found.ntypes, found.canonical_etypes) == (wanted.ntypes, wanted.canonical_etypes)
    assert found.is_block == wanted.is_block
    for kind in ("srctypes", "dsttypes"):
        assert getattr(found, kind) == getattr(wanted, kind)
    for ntype in wanted.srctypes:
        assert found.num_src_nodes(ntype) == wanted.num_src_nodes(ntype)
        assert_same(dict(found.srcnodes[ntype].data), dict(wanted.srcnodes[ntype].data), device)
    for ntype in wanted.dsttypes:
        assert found.num_dst_nodes(ntype) == wanted.num_dst_nodes(ntype)
        assert_same(dict(found.dstnodes[ntype].data), dict(wanted.dstnodes[ntype].data), device)
    for etype in wanted.canonical_etypes:
        assert_same(
            found.edges(form="all", order="eid", etype=etype),
            wanted.edges(form="all", order="eid", etype=etype),
            device,
        )
        assert_same(dict(found.edges[etype].data), dict(wanted.edges[etype].data), device)
    for batched in ("batch_num_nodes", "batch_num_edges"):
        for kind in wanted.ntypes if batched.endswith("nodes") else wanted.canonical_etypes:
            if not wanted.is_block:
                ours, stock = getattr(found, batched)(kind), getattr(wanted, batched)(kind)
                assert ours.tolist() == stock.tolist() and ours.device == device


# ---------------------------------------------------------------------- graphs

IDTYPES = (torch.int32, torch.int64)


def ends(
    num_src: int, num_dst: int, num_edges: int, idtype: torch.dtype, seed: int = 0
) -> tuple[Any, Any]:
    """Random ends of edges; with many edges among few nodes some are parallel."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(  # type: ignore[return-value]
        torch.randint(0, max(n, 1), (num_edges if n else 0,), generator=generator).to(idtype)
        for n in (num_src, num_dst)
    )


def featured(g: Any) -> Any:
    """Give every node and edge type features."""
    generator = torch.Generator().manual_seed(5)
    for ntype in g.ntypes:
        g.nodes[ntype].data["x"] = torch.randn(g.num_nodes(ntype), 3, generator=generator)
    for etype in g.canonical_etypes:
        g.edges[etype].data["w"] = torch.rand(g.num_edges(etype), generator=generator)
    return g


def homogeneous(idtype: torch.dtype, nodes: int = 13, edges: int = 40) -> Any:
    return featured(dgl.graph(ends(nodes, nodes, edges, idtype), num_nodes=nodes, idtype=idtype))


def bipartite(idtype: torch.dtype) -> Any:
    data = {("user", "likes", "item"): ends(9, 7, 25, idtype)}
    return featured(dgl.heterograph(data, {"user": 9, "item": 7}, idtype=idtype))


def heterogeneous(idtype: torch.dtype) -> Any:
    data = {
        ("user", "follows", "user"): ends(9, 9, 30, idtype, 1),
        ("user", "likes", "item"): ends(9, 7, 20, idtype, 2),
        ("item", "liked by", "user"): ends(7, 9, 0, idtype, 3),
        ("user", "sells", "item"): ends(9, 7, 6, idtype, 4),
        ("shop", "next to", "shop"): ends(0, 0, 0, idtype),
    }
    counts = {"user": 9, "item": 7, "shop": 0}
    return featured(dgl.heterograph(data, counts, idtype=idtype))


KINDS: dict[str, Callable[[torch.dtype], Any]] = {
    "homogeneous": homogeneous,
    "dense": lambda idtype: homogeneous(idtype, 5, 60),
    "no edges": lambda idtype: homogeneous(idtype, 4, 0),
    "empty": lambda idtype: homogeneous(idtype, 0, 0),
    "bipartite": bipartite,
    "heterogeneous": heterogeneous,
}


def graphs(*kinds: str) -> Any:
    """Parametrise a test over ``g``: graphs of these kinds (all by default), both id types."""
    rows = [
        pytest.param(KINDS[kind], idtype, id=f"{kind}-{str(idtype)[6:]}")
        for kind in kinds or KINDS
        for idtype in IDTYPES
    ]
    return pytest.mark.parametrize(("kind", "idtype"), rows)


def detoured(profile: Profile) -> dict[str, int]:
    return dict(profile.detours)
