"""Attention over tiles: the emulator against the float64 formula, on every kind of graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gnn_backend import config, datasets
from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph
from gnn_backend.graph.build import expand_rows
from gnn_backend.ops.functors import softmax_aggregate
from gnn_backend.profile import profile
from gnn_backend.runtime import block_sparse
from tests.ops.support import edges_with_hubs, scale_of

#: Largest error of the output and of the gradients, relative to the largest reference value: inputs
#: and weights are rounded to 8, 11 and 11 bits.
TOLERANCE = {
    torch.bfloat16: (6e-3, 1.5e-2),
    torch.float16: (1e-3, 2e-3),
    torch.float32: (2e-3, 3e-3),
}
DTYPES = tuple(TOLERANCE)
Edges = tuple[Tensor, int, int]


@pytest.fixture(autouse=True)
def emulated_with_tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    with config.override(cpu_target="emulator"):
        yield
    torch.backends.cuda.matmul.allow_tf32 = before


@dataclasses.dataclass
class Problem:
    graph: Graph
    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    scale: float


def problem(edges: Edges, heads: int, dim: int, dtype: torch.dtype, *, seed: int = 0) -> Problem:
    edge_index, num_src, num_dst = edges
    generator = torch.Generator().manual_seed(seed)
    tables = [
        torch.randn(n, heads, dim, generator=generator).to(dtype)
        for n in (num_dst, num_src, num_src, num_dst)
    ]
    return Problem(Graph.from_edge_index(edge_index, num_src, num_dst), *tables, dim**-0.5)


def run(p: Problem, needs: str = "qkv") -> dict[str, Tensor]:
    out, lse = block_sparse.forward(p.graph, p.q, p.k, p.v, p.scale)
    found = block_sparse.backward(
        p.graph, p.q, p.k, p.v, p.scale, out, lse, p.grad, frozenset(needs)
    )
    assert {n for n, g in found._asdict().items() if g is not None} == set(needs)
    return {"out": out, "lse": lse, **{n: g for n, g in found._asdict().items() if g is not None}}


def reference(p: Problem) -> tuple[dict[str, Tensor], Tensor]:
    """Output and gradients, and the base-2 log-sum-exp."""
    q, k, v = (t.double().requires_grad_() for t in (p.q, p.k, p.v))
    graph = p.graph
    source = graph.by_dst.indices.long()
    rows = expand_rows(graph.by_dst.indptr, graph.num_edges).long()
    logits = (q[rows] * k[source]).sum(-1) * p.scale
    out = softmax_aggregate(graph, logits, v[source])
    grads = torch.autograd.grad(out, (q, k, v), p.grad.double())
    total = torch.zeros(out.shape[:2], dtype=torch.float64)
    total.index_add_(0, rows, logits.detach().exp())
    found = dict(zip("qkv", grads, strict=True))
    return {"out": out.detach(), **found}, total.log2()


def check(p: Problem) -> dict[str, Tensor]:
    got, (want, lse) = run(p), reference(p)
    rows = p.graph.by_dst.indptr.diff() > 0
    torch.testing.assert_close(got["lse"][rows].double(), lse[rows], rtol=0, atol=2e-2)
    assert not got["out"][~rows].any() and not got["q"][~rows].any()
    for name in ("out", "q", "k", "v"):
        assert got[name].shape == want[name].shape and got[name].dtype == p.q.dtype
        difference = (got[name].double() - want[name]).abs()
        error = difference.max().item() / scale_of(name, want) if difference.numel() else 0.0
        assert error <= TOLERANCE[p.q.dtype][name != "out"], f"{name}: {error:.1e}"
    return got


def duplicates() -> Edges:
    edges = datasets.uniform(30, 25, 90, seed=3)
    return torch.cat([edges, edges[:, :40], edges[:, :20], edges[:, :1].expand(2, 30)], 1), 30, 25


GRAPHS: dict[str, Edges] = {
    "block model": (datasets.block_model(50, 20, 0.5, seed=1), 50, 50),
    "sparse": (datasets.uniform(300, 70, 250, seed=2), 300, 70),
    "hubs": edges_with_hubs(),
    "duplicates": duplicates(),
    "one edge": (torch.tensor([[3], [17]]), 5, 18),
    "no edges": (torch.empty(2, 0, dtype=torch.int64), 4, 20),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str, dtype: torch.dtype) -> None:
    check(problem(GRAPHS[name], 2, 64, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", block_sparse.DIMS)
def test_head_dimensions(dim: int, dtype: torch.dtype) -> None:
    check(problem(GRAPHS["duplicates"], 1 + dim // 16 % 3, dim, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [32, 128])
def test_split_windows_are_merged(
    dim: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnn_backend.graph.block_sparse.CHUNKS", (1,))
    p = problem(GRAPHS["hubs"], 3, dim, dtype)
    got = check(p)
    assert p.graph.block_sparse("dst").splits.num_slots > 2
    assert p.graph.block_sparse("src").splits.num_slots > 2
    assert p.graph.num_dst % 16 and all(t.is_contiguous() for t in got.values())


def test_duplicates_count_in_the_softmax() -> None:
    edges = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0]])
    p = problem((edges, 2, 1), 1, 16, torch.bfloat16)
    p.q.zero_()
    out, lse = block_sparse.forward(p.graph, p.q, p.k, p.v, p.scale)
    expected = (3 * p.v[0].float() + p.v[1].float()) / 4
    torch.testing.assert_close(out[0].float(), expected, rtol=1e-2, atol=1e-2)
    assert lse.item() == pytest.approx(2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_are_no_neighbours_spoil_nothing(dtype: torch.dtype) -> None:
    """An infinity or NaN reaches its neighbours alone, in every pass, as in the formula."""
    edges, num_src, num_dst = GRAPHS["block model"]
    p = problem((edges, num_src, num_dst), 2, 16, dtype)
    p.v[3, 0, 2] = float("inf")
    p.k[25, 1, 5] = float("nan")
    p.grad[7, 0, 1] = float("nan")
    got, (want, _) = run(p), reference(p)
    for name in ("out", "q", "k", "v"):
        assert want[name].isnan().any() and not want[name].isnan().all()
        assert torch.equal(got[name].isnan(), want[name].isnan()), name
        assert torch.equal(got[name].isinf(), want[name].isinf()), name


def test_extreme_logits() -> None:
    p = problem(GRAPHS["hubs"], 2, 32, torch.bfloat16)
    p.q *= 300
    p.k *= 300
    out, lse = block_sparse.forward(p.graph, p.q, p.k, p.v, p.scale)
    want, _ = reference(p)
    assert lse.abs().max() > 1e4 and out.isfinite().all()
    assert (out.double() - want["out"]).abs().max() < 0.02 * want["out"].abs().max()
    p.q[:] = float("-inf")
    p.k[:] = 1
    out, _ = block_sparse.forward(p.graph, p.q, p.k, p.v, p.scale)
    rows = p.graph.by_dst.indptr.diff() > 0
    assert out[rows].isnan().all() and not out[~rows].any()


def test_equal_inputs_give_equal_bits_in_any_order_of_lanes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gnn_backend.graph.block_sparse.CHUNKS", (1,))
    p = problem(GRAPHS["hubs"], 2, 32, torch.float16)
    first = run(p)
    for order in ("reversed", "random:3"):
        with config.override(emulator_lane_order=order):
            again = run(p)
        assert all(torch.equal(first[n], again[n]) for n in first)


@pytest.mark.parametrize(("dim", "dtype"), [(64, torch.bfloat16), (128, torch.float16)])
@pytest.mark.parametrize("needs", ["q", "k", "v", "kv"])
def test_only_what_is_needed(needs: str, dim: int, dtype: torch.dtype) -> None:
    p = problem(GRAPHS["sparse"], 1, dim, dtype)
    whole = run(p)
    with profile() as record:
        part = run(p, needs)
    assert all(torch.equal(part[n], whole[n]) for n in needs)
    launched = {name.rsplit("_", 1)[1] for _, name in record.launches if "backward" in name}
    if dim == 128:
        assert launched == {{"q": "dst", "k": "key", "v": "value"}[n] for n in needs}
    else:
        assert launched == {"dst" if n == "q" else "src" for n in needs}


def test_operands_that_are_not_aligned() -> None:
    p = problem(GRAPHS["sparse"], 2, 16, torch.bfloat16)
    want = run(p)
    shifted = {}
    for name in ("q", "k", "v", "grad"):
        table = getattr(p, name)
        shifted[name] = torch.cat([table.new_zeros(3), table.flatten()])[3:].view(table.shape)
        assert shifted[name].data_ptr() % 16
    got = run(dataclasses.replace(p, **shifted))
    assert all(torch.equal(got[n], want[n]) for n in want)


@pytest.mark.parametrize(
    ("dtype", "heads", "dim", "words"),
    [
        (torch.float64, 1, 16, "float64"),
        (torch.bfloat16, 1, 24, "24"),
        (torch.bfloat16, 1, 144, "144"),
        (torch.bfloat16, 70_000, 16, "70000 heads"),
    ],
)
def test_what_it_cannot(dtype: torch.dtype, heads: int, dim: int, words: str) -> None:
    p = problem((torch.tensor([[0], [0]]), 1, 1), heads, dim, dtype)
    with pytest.raises(Unsupported, match=words) as caught:
        block_sparse.forward(p.graph, p.q, p.k, p.v, 1.0)
    assert caught.value.reason == "tensor-cores"


def test_float32_needs_tf32() -> None:
    assert block_sparse.cannot(torch.float32, 1, 16) is None
    torch.backends.cuda.matmul.allow_tf32 = False
    assert "allow" in (block_sparse.cannot(torch.float32, 1, 16) or "")
