"""Structures that break kernels: empty rows and graphs, loops, duplicates, hubs that split."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from gnn_backend import config
from gnn_backend.graph import Graph, build, counting_sort
from tests.ops.scenarios import GRAPHS, error_factor, pairs, rows_without_edges
from tests.ops.support import check_problem, edges_with_hubs, problem, run, same_bits

pytestmark = pytest.mark.sampled(5)

SHAPES = [(2, 64), (3, 7)]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(("heads", "dim"), SHAPES)
def test_graphs(name: str, heads: int, dim: int, target: str, splitting: None) -> None:
    got = check_problem(problem(heads, dim, edges=GRAPHS[name]), error_factor(name))
    sources, destinations = rows_without_edges(name)
    assert not got["out"][destinations].any() and not got["x_dst"][destinations].any()
    assert not got["x_src"][sources].any()


@pytest.mark.parametrize(("num_src", "num_dst"), [(0, 0), (4, 0), (0, 4), (4, 6)])
@pytest.mark.parametrize(("heads", "dim"), SHAPES)
def test_no_edges(num_src: int, num_dst: int, heads: int, dim: int, target: str) -> None:
    got = run(problem(heads, dim, edges=(pairs([], []), num_src, num_dst)))
    assert got["out"].shape == (num_dst, heads, dim)
    assert not any(tensor.any() for tensor in got.values())


@pytest.mark.parametrize("chunk", [1, 2, 3, 16, 63, 64, 65, 1000])
def test_chunks(chunk: int, target: str, split_at: Callable[[int], None]) -> None:
    """Task lengths around batches and warps; slots from none to one an edge."""
    split_at(chunk)
    check_problem(problem(2, 64, seed=chunk))


@pytest.mark.parametrize("degree", [7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 65])
def test_degrees_around_the_chunk(degree: int, target: str, splitting: None) -> None:
    """A full last chunk, one of a single edge, fewer slots than merging warps, more of them."""
    edges = torch.stack([torch.arange(degree) % 11, torch.zeros(degree, dtype=torch.int64)])
    check_problem(problem(3, 7, edges=(edges, 11, 2)))
    check_problem(problem(3, 7, edges=(edges.flip(0), 2, 11)))


@st.composite
def small_graphs(draw: st.DrawFn) -> tuple[Tensor, int, int]:
    num_src, num_dst = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    pair = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    edges = draw(st.lists(pair, min_size=1, max_size=60))
    return torch.tensor(edges).t().contiguous(), num_src, num_dst


@hypothesis.settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(small_graphs(), st.integers(1, 12), st.integers(0, 10))
def test_any_graph(
    target: str,
    split_at: Callable[[int], None],
    edges: tuple[Tensor, int, int],
    chunk: int,
    seed: int,
) -> None:
    split_at(chunk)
    check_problem(problem(3, 7, edges=edges, seed=seed), 10)  # few edges: gradients may cancel


def test_splitting_changes_rounding_alone(target: str, split_at: Callable[[int], None]) -> None:
    split_at(1000)
    whole = run(problem())
    split_at(8)
    pieces = run(problem())
    for name, value in whole.items():
        torch.testing.assert_close(pieces[name], value, rtol=1e-4, atol=1e-5)
    assert not torch.equal(whole["out"], pieces["out"])  # it did take another path


def test_order_of_the_callers_edges_does_not_matter(target: str) -> None:
    """Rows keep the caller's order, so sums may round differently, and nothing else changes."""
    edges, num_src, num_dst = edges_with_hubs()
    first = run(problem(3, 7, edges=(edges, num_src, num_dst)))
    again = run(problem(3, 7, edges=(edges.flip(1), num_src, num_dst)))
    for name, value in first.items():
        torch.testing.assert_close(again[name], value, rtol=1e-4, atol=1e-5)


def test_int32_edges_and_csr_input_give_the_same_bits(target: str) -> None:
    p = problem(3, 7)
    first = run(p)
    edges, num_src, num_dst = edges_with_hubs()
    p.graph = Graph.from_edge_index(edges.int(), num_src, num_dst)
    assert same_bits(first, run(p))
    csr = p.graph.by_dst
    p.graph = Graph.from_csr(csr.indptr.long(), csr.indices.long(), num_src)
    assert same_bits(first, run(p))


@pytest.mark.slow  # Numba compiles its kernels for these offsets
@pytest.mark.thorough
def test_wide_offsets(target: str, splitting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 64-bit row bounds of graphs with 2^31 edges give the same bits."""
    first = run(problem(3, 7))
    monkeypatch.setattr(build, "INT32_MAX", 5)
    monkeypatch.setattr(counting_sort, "INT32_MAX", 5)
    p = problem(3, 7)
    assert p.graph.by_dst.indptr.dtype == p.graph.by_src.indptr.dtype == torch.int64
    assert same_bits(first, run(p))


def test_targets_agree(emulator: None, splitting: None) -> None:
    got = run(problem())
    with config.override(cpu_target="numba"):
        other = run(problem())
    for name, value in got.items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-5)
