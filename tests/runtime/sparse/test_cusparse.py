"""Products by cuSPARSE: what is kept with a graph, and for how long. A stand-in multiplies."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gnn_backend import config
from gnn_backend.graph import Graph
from gnn_backend.ops import aggregate
from gnn_backend.profile import profile
from gnn_backend.runtime.sparse import cusparse, selection
from gnn_backend.runtime.sparse.cusparse import MOST_LANES, MOST_PLANS
from gnn_backend.runtime.sparse.cusparse_library import _SIGNATURES, CuSparseError, Library
from gnn_backend.runtime.sparse.selection import Form
from tests.ops.support import edges_with_hubs
from tests.runtime.sparse.fake_cusparse import FakeLibrary

EDGES, NUM_SRC, NUM_DST = edges_with_hubs()


@pytest.fixture
def library(unoptimised: None, monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    """Operators on the emulator, with a cuSPARSE on the CPU beside it."""
    fake = FakeLibrary()
    monkeypatch.setattr(cusparse, "library_of", lambda _: fake)
    monkeypatch.setattr(
        selection, "cannot", lambda g, path, f: open_on_the_cpu(g, f) if path != "rows" else None
    )
    return fake


def open_on_the_cpu(graph: Graph, form: Form) -> str | None:
    mean = form.reduce == "mean" and form.values_an_edge
    return "no" if mean or form.values_an_edge > 1 or form.family not in selection.LINEAR else None


@pytest.fixture
def through_cusparse() -> Iterator[None]:
    with config.override(aggregation_path="cusparse"):
        yield


def graph() -> Graph:
    return Graph.from_edge_index(EDGES, NUM_SRC, NUM_DST)


def results(g: Graph, reduce: str, weighted: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_SRC, 3, 4, generator=generator).requires_grad_()
    edge = torch.rand(EDGES.shape[1], generator=generator).requires_grad_()
    own = {"edge": edge, "message": "mul"} if weighted else {}
    out = aggregate(g, x, reduce, **own)
    leaves = [x, edge] if weighted else [x]
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))]


@pytest.mark.parametrize(("reduce", "weighted"), [("sum", False), ("mean", False), ("sum", True)])
def test_the_same_as_over_rows(
    reduce: str, weighted: bool, library: FakeLibrary, through_cusparse: None
) -> None:
    """Forward and backward, edges in another order than the CSR's."""
    assert graph().by_dst.edge_ids is not None
    with profile() as record:
        got = results(graph(), reduce, weighted)
    assert record.launches["cpu", "cusparseSpMM"] == 2 == len(library.streams)
    assert any("cusparse" in choice for choice in record.choices)
    with config.override(aggregation_path="rows"):
        want = results(graph(), reduce, weighted)
    assert len(library.streams) == 2
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


def test_descriptors_live_as_long_as_the_graph(library: FakeLibrary) -> None:
    g, x = graph(), torch.randn(NUM_SRC, 8)
    first = cusparse.product(g, "dst", x)
    made = set(library.alive)
    assert len(made) == 3
    again = cusparse.product(g, "dst", 2 * x)  # elsewhere in memory
    assert library.alive == made and len(set(library.workspaces)) == 1
    torch.testing.assert_close(again, 2 * first)
    (ones,) = (v for k, v in g.plans.items() if k[0] == "cuSPARSE values")
    assert g.nbytes() >= FakeLibrary.workspace + ones.numel() * 4
    del g, ones
    gc.collect()
    assert not library.alive


def test_weights_of_each_call_are_its_own(library: FakeLibrary) -> None:
    g, x = graph(), torch.randn(NUM_SRC, 8)
    weights = torch.rand(g.num_edges)
    first = cusparse.product(g, "src", torch.randn(NUM_DST, 8), weights)
    one = cusparse.product(g, "dst", x, weights)
    two = cusparse.product(g, "dst", x, weights * 3)
    assert first.shape == (NUM_SRC, 8) and len(library.alive) == 6
    torch.testing.assert_close(two, 3 * one)


def test_what_is_kept_is_bounded(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    g = graph()
    for width in range(1, MOST_PLANS + 4):
        cusparse.product(g, "dst", torch.randn(NUM_SRC, width))
    assert len(g.plans["cuSPARSE"]) == MOST_PLANS and len(library.alive) == 3 * MOST_PLANS
    for stream in range(MOST_LANES + 3):
        monkeypatch.setattr(cusparse, "_stream", lambda _, s=stream: (s, False))
        cusparse.product(g, "dst", torch.randn(NUM_SRC, width))
    assert library.streams[-2:] == [stream - 1, stream]
    assert len(library.alive) == 3 * (MOST_PLANS - 1 + MOST_LANES)


def test_each_stream_has_a_workspace(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    g, x = graph(), torch.randn(NUM_SRC, 8)
    for stream in (5, 6, 5):
        monkeypatch.setattr(cusparse, "_stream", lambda _, s=stream: (s, False))
        cusparse.product(g, "dst", x)
    assert len(set(library.workspaces)) == 2 and library.streams == [5, 6, 5]


def test_a_capture_takes_memory_of_its_own(
    library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is kept."""
    g, x = graph(), torch.randn(NUM_SRC, 8)
    want = cusparse.product(g, "dst", x)
    alive = set(library.alive)
    monkeypatch.setattr(cusparse, "_stream", lambda _: (7, True))
    assert torch.equal(cusparse.product(g, "dst", x), want)
    gc.collect()
    assert library.alive == alive and library.streams[-1] == 7


@pytest.mark.parametrize(
    ("reduce", "dtype", "values", "why"),
    [("sum", torch.float64, 0, "float64"), ("sum", torch.float32, 2, "several weights"),
     ("sum", torch.float16, 0, "not precise"), ("mean", torch.float32, 1, "rounded twice")],
)  # fmt: skip
def test_what_it_cannot_take(
    reduce: str, dtype: torch.dtype, values: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = graph()
    assert "no cuSPARSE on cpu" in (cusparse.cannot(g, torch.float32, 8, "sum", 0) or "")
    monkeypatch.setattr(Graph, "device", torch.device("cuda", 0))
    monkeypatch.setattr(cusparse, "library_of", lambda _: FakeLibrary())
    assert cusparse.cannot(g, torch.float32, 8, "sum", 1) is None
    assert why in (cusparse.cannot(g, dtype, 8, reduce, values) or "")


class Shared:
    """A loaded library whose functions note what they were given."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        for name in _SIGNATURES:
            setattr(self, f"cusparse{name}", self._function(name, int(name == failing)))
        self.cusparseGetErrorString = lambda status: b"not that"

    def _function(self, name: str, status: int) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            assert len(arguments) == len(_SIGNATURES[name])
            return status

        return call


def test_the_library_is_called_by_its_signatures() -> None:
    shared = Shared()
    library = Library(shared)
    csr = library.csr(2, 3, 4, 16, 32, 48)
    dense = library.dense(3, 8, 64)
    library.set_values(csr, 80)
    library.set_data(dense, 96)
    library.multiply(csr, dense, dense, 112, stream=7)
    library.multiply(csr, dense, dense, 112, stream=9)
    library.free(csr, dense, dense)
    assert library.workspace_bytes(csr, dense, dense) == 0
    named = dict(shared.calls)
    assert named["CreateCsr"][1:] == (2, 3, 4, 16, 32, 48, 2, 2, 0, 0)  # 32-bit, float32
    assert named["CreateDnMat"][1:] == (3, 8, 8, 64, 0, 2)  # rows follow each other
    assert named["SpMM"][8:] == (0, 6, 112)  # sums in float32
    streams = [given[1] for name, given in shared.calls if name == "SetStream"]
    assert streams == [7, 9]


def test_what_the_library_refuses() -> None:
    library = Library(Shared(failing="CreateCsr"))
    with pytest.raises(CuSparseError, match=r"status 1 .not that.*AGGREGATION_PATH=rows"):
        library.csr(2, 3, 4, 16, 32, 48)
