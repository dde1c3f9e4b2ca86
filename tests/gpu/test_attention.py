"""Output and every gradient on CUDA against the float64 twin."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.errors import InvalidArgument, Unsupported
from gnn_backend.ops.attention import gatv2_attention
from gnn_backend.profile import profile
from tests.gpu import support
from tests.gpu.support import SHAPES, chunks_of, raises, table
from tests.ops.scenarios import (
    GRAPHS,
    POISONS,
    beside_a_masked_source,
    error_factor,
    large_logits,
    masked,
    pairs,
    poisoned,
    rows_without_edges,
    same_places,
    with_ties,
)
from tests.ops.support import (
    DTYPES,
    NAMES,
    TABLE,
    Problem,
    attention,
    check_problem,
    problem,
    reference,
    run,
    same_bits,
)

pytestmark = support.MARKS


@table("heads, dim, dtype, slope", TABLE)
def test_shapes(heads: int, dim: int, dtype: torch.dtype, slope: float) -> None:
    support.compile_table()
    with chunks_of(8):
        p = problem(heads, dim, dtype, slope=slope, device=support.DEVICE)
        with profile() as record:
            got = check_problem(p)
    assert {target for target, _ in record.launches} == {"cuda"}
    assert same_bits(got, run(p))


@table("name", GRAPHS)
@table("heads, dim", SHAPES)
def test_graphs(name: str, heads: int, dim: int) -> None:
    with chunks_of(8):
        p = problem(heads, dim, edges=GRAPHS[name], device=support.DEVICE)
        got = check_problem(p, error_factor(name))
    sources, destinations = rows_without_edges(name)
    assert not got["out"][destinations].any() and not got["x_dst"][destinations].any()
    assert not got["x_src"][sources].any()


@table("num_src, num_dst", [(0, 0), (4, 0), (0, 4), (4, 6)])
@table("heads, dim", [*SHAPES, (0, 7), (3, 0)])
def test_no_edges(num_src: int, num_dst: int, heads: int, dim: int) -> None:
    p = problem(heads, dim, edges=(pairs([], []), num_src, num_dst), device=support.DEVICE)
    got = run(p)
    assert got["out"].shape == (num_dst, heads, dim)
    assert not any(tensor.any() for tensor in got.values())


@table("chunk", [1, 3, 16, 64, 1000])
@table("heads, dim", SHAPES)
def test_chunks(chunk: int, heads: int, dim: int) -> None:
    with chunks_of(chunk):
        check_problem(problem(heads, dim, seed=chunk, device=support.DEVICE))


def heavy_tailed(num_nodes: int = 20_000, num_edges: int = 400_000) -> tuple[Tensor, int, int]:
    """A hub of a quarter of all in-edges, one of out-edges, and rows without any."""
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(0, num_nodes * 9 // 10, (2, num_edges), generator=generator)
    edges[1, : num_edges // 4] = 17
    edges[0, -num_edges // 4 :] = 4
    return edges, num_nodes, num_nodes


@table("dtype", DTYPES)
@table("heads, dim", [(2, 64), (3, 20)])
def test_a_graph_of_real_size(dtype: torch.dtype, heads: int, dim: int) -> None:
    """With the shipped chunks and grids; sums of 100 000 terms allow a larger error."""
    p = problem(heads, dim, dtype, edges=heavy_tailed(), device=support.DEVICE)
    first = check_problem(p, 4)
    assert all(same_bits(first, run(p)) for _ in range(3))


@table("name", POISONS)
@table("heads, dim", SHAPES)
def test_not_finite_as_stock(name: str, heads: int, dim: int) -> None:
    with chunks_of(8):
        p = poisoned(name, heads, dim, support.DEVICE)
        got = attention(p).detach()
    same_places(got, reference(p, torch.float32)["out"])
    assert got.isfinite().any()


@table("sign", [1.0, -1.0])
@table("heads, dim", SHAPES)
def test_masked_sources(sign: float, heads: int, dim: int) -> None:
    with chunks_of(8):
        p = masked(heads, dim, [5], sign, support.DEVICE)
        same_places(attention(p).detach(), reference(p, torch.float32)["out"])
        p = masked(heads, dim, list(range(37)), sign, support.DEVICE)
        out, rows = attention(p).detach(), p.graph.by_dst.indptr.diff() > 0
    assert out[rows].isnan().all() and not out[~rows].any()


@table("sign", [1.0, -1.0])
@table("heads, dim", SHAPES)
def test_gradient_beside_a_masked_source(sign: float, heads: int, dim: int) -> None:
    p = beside_a_masked_source(heads, dim, sign, support.DEVICE)
    got, want = run(p), reference(p, torch.float32)
    assert not got["x_src"][0].any()
    for name, value in want.items():
        same_places(got[name][..., 1:], value[..., 1:])


@table("size", [1e4, -1e4])
@table("heads, dim", SHAPES)
def test_large_logits(size: float, heads: int, dim: int) -> None:
    p, want = large_logits(heads, dim, size, support.DEVICE)
    torch.testing.assert_close(attention(p)[0], want, rtol=1e-5, atol=1e-5)


@table("slope", [0.2, 1.5, -0.3])
def test_ties_at_zero(slope: float) -> None:
    check_problem(with_ties(2, 64, slope, support.DEVICE))


@table("heads, dim", [(70_000, 1), (1, 1024)])
def test_many_heads_and_wide_heads(heads: int, dim: int) -> None:
    """More head blocks than a grid has rows."""
    check_problem(problem(heads, dim, edges=GRAPHS["duplicates"], device=support.DEVICE))


@table("name", [*NAMES, "cotangent"])
@table("dtype", [torch.float32, torch.float16])
def test_layouts_give_the_same_bits(name: str, dtype: torch.dtype) -> None:
    p = problem(2, 64, dtype, device=support.DEVICE)
    expected = run(p)
    layouts = (
        lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
        lambda t: torch.stack([t, t + 1], -1).flatten(-2)[..., ::2],
        lambda t: torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape),
    )
    for layout in layouts:
        if name == "cotangent":
            q = Problem(p.graph, p.operands, layout(p.cotangent), p.slope)
        else:
            changed = layout(p.operands[name].detach()).requires_grad_()
            q = p.with_operands(**{name: changed})
        assert same_bits(expected, run(q))


def test_a_cotangent_of_stride_zero() -> None:
    p = problem(3, 7, device=support.DEVICE)
    attention(p).sum().backward()
    p.cotangent = torch.ones_like(p.cotangent)
    expected = run(p)
    assert all(torch.equal(t.grad, expected[n]) for n, t in p.operands.items())


def refuse(p: Problem, reason: str) -> None:
    assert raises(Unsupported, lambda: attention(p)).reason == reason


def test_what_is_declined() -> None:
    refuse(problem(2, 7, torch.float64, device=support.DEVICE), "dtype-float64")
    refuse(problem(1, 1025, device=support.DEVICE), "head-dim")


@table("name", NAMES)
def test_mixed_devices(name: str) -> None:
    p = problem(2, 7, device=support.DEVICE)
    mixed = p.with_operands(**{name: p.operands[name].detach().cpu()})
    raises(InvalidArgument, lambda: attention(mixed), f"{name}: not on the graph's device")


def test_a_wrong_shape() -> None:
    p = problem(2, 7, device=support.DEVICE)
    short = p.with_operands(x_dst=p.operands["x_dst"].detach()[1:])
    raises(InvalidArgument, lambda: attention(short), "x_dst: wrong shape")
    raises(
        InvalidArgument,
        lambda: gatv2_attention(p.graph, *p.operands.values(), negative_slope=float("nan")),
        "negative_slope",
    )
