"""Attention over tiles: the emulator against the float64 formula, on every kind of graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from gnn_backend import config
from gnn_backend.errors import Unsupported
from gnn_backend.profile import profile
from gnn_backend.runtime import block_sparse
from gnn_backend.runtime.block_units import DIMS
from tests.runtime.block_cases import (
    DTYPES,
    GRAPHS,
    check,
    problem,
    reference,
    run,
    with_bias,
)

pytestmark = pytest.mark.sampled(9)


@pytest.fixture(autouse=True)
def emulated_with_tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    with config.override(cpu_target="emulator"):
        yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str, dtype: torch.dtype) -> None:
    check(problem(GRAPHS[name], 2, 64, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", DIMS)
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["hubs", "duplicates", "no edges"])
@pytest.mark.parametrize("chunk", [1, 32])
def test_edge_bias(
    name: str, chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each duplicate has a bias and a gradient of its own."""
    monkeypatch.setattr("gnn_backend.graph.block_sparse.CHUNKS", (chunk,))
    check(with_bias(problem(GRAPHS[name], 2, 32, dtype), dtype))


def test_a_bias_of_minus_infinity_takes_an_edge_away() -> None:
    p = with_bias(problem(GRAPHS["duplicates"], 2, 16, torch.bfloat16), torch.float32)
    assert p.edge_bias is not None
    p.edge_bias[:, 0] = float("-inf")
    p.edge_bias[::2, 1] = float("-inf")
    got, (want, _) = run(p), reference(p)
    for name in ("out", "q", "k", "v", "edge_bias"):
        assert torch.equal(got[name].isnan(), want[name].isnan()), name
    rows = p.graph.by_dst.indptr.diff() > 0
    assert got["out"][rows, 0].isnan().all() and not got["out"][rows, 1].isnan().all()
    assert got["edge_bias"].dtype == torch.float32


def test_only_the_gradient_of_the_bias() -> None:
    p = with_bias(problem(GRAPHS["sparse"], 2, 32, torch.float16), torch.float16)
    whole, part = run(p), run(p, "")
    assert torch.equal(part["edge_bias"], whole["edge_bias"])


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
