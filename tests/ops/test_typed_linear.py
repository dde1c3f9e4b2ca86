"""The typed linear against its twin in float64, on the CPU and on the emulated kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.ops import segment_products
from gnn_backend.ops.typed_linear import Bounds, typed_linear, typed_weight_grad
from gnn_backend.profile import profile
from gnn_backend.runtime import gemm
from tests.ops.typed_products import TF32, check, problem

LENGTHS = [3, 0, 150, 17, 0]
FLAGS = list(itertools.product((False, True), repeat=3))  # rows, out_rows, scale


@pytest.mark.parametrize(("rows", "out_rows", "scale"), FLAGS)
def test_every_index(
    rows: bool, out_rows: bool, scale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_products, "BLOCK_VALUES", 400)  # several blocks a type
    given = {"rows": rows, "out_rows": out_rows, "scale": scale}
    check(problem(LENGTHS, 6, 5, dtype=torch.float64, **given))
    check(problem(LENGTHS, 6, 5, 3, **given))
    check(problem(LENGTHS, 6, 5, 3, each=True, **given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_on_the_cpu(dtype: torch.dtype) -> None:
    check(problem([300, 20], 40, 24, dtype=dtype, rows=True))
    check(problem([30], 8, 4, dtype=dtype))  # one type: a product of torch


@pytest.fixture(params=["f32", "tf32", "bf16", "f16"])
def form(request: pytest.FixtureRequest) -> Iterator[tuple[str, torch.dtype, float | None]]:
    """Name, dtype and tolerance of a way to multiply."""
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}.get(request.param, torch.float32)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = request.param == "tf32"
    yield request.param, dtype, TF32 if request.param == "tf32" else None
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("unoptimised")
def test_kernels(
    form: tuple[str, torch.dtype, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aligned and odd sizes, several tiles and chunks, steps that are not full."""
    monkeypatch.setattr(gemm, "_SHORTEST_CHUNK", 32)
    name, dtype, tolerance = form
    problems = [
        problem(LENGTHS, 72, 64, dtype=dtype, rows=True, out_rows=True),
        problem([7, 130], 7, 5, dtype=dtype, rows=True, scale=True),
    ]
    if name != "f16":  # which differs from bf16 in the names of instructions
        problems += [
            problem([40, 0, 90], 16, 24, 2, dtype=dtype, each=True),
            problem([40, 0, 90], 16, 24, 2, dtype=dtype, scale=True),
            problem([20, 21], 1, 1, 3, dtype=dtype, each=True, out_rows=True),
        ]
    with profile() as record:
        for given in problems:
            check(given, tolerance)
    assert {target for target, _ in record.launches} == {"emulator"}
    products = {which: n for (_, which), n in record.launches.items() if "sum" not in which}
    assert all(f"_{name}" in which for which in products)
    assert len(products) == (4 if name == "f16" else 7)
    assert sum(products.values()) == len(problems) * (3 + 2)


@pytest.mark.usefixtures("unoptimised")
def test_every_index_of_the_kernels() -> None:
    for rows, out_rows, scale in FLAGS:
        check(problem(LENGTHS, 16, 24, rows=rows, out_rows=out_rows, scale=scale))


@pytest.mark.usefixtures("target")
def test_nothing_is_nothing() -> None:
    check(problem([0, 0], 4, 8))
    x, weight = torch.randn(3, 4), torch.randn(1, 4, 0)
    assert typed_linear(x, weight, Bounds(torch.tensor([0, 3]))).shape == (3, 0)
    none = problem([0, 0], 4, 8, out_rows=True)
    out = typed_linear(none.x, none.weight, none.bounds, **none.index)
    assert out.shape == (9, 8) and not out.any()


@pytest.mark.usefixtures("target")
def test_views_are_read_as_they_are() -> None:
    given = problem([5, 6], 8, 4, rows=True)
    given.x = torch.randn(8, 50).t()
    given.weight = torch.randn(4, 8, 2).permute(2, 1, 0)
    given.grad = torch.randn(11, 8)[:, ::2]
    check(given)


def test_segments_with_lengths() -> None:
    """Other segments than ours: any object with bounds and lengths."""
    given = problem([5, 6], 8, 4)
    segments = SimpleNamespace(ptr=given.bounds.ptr, lengths=(5, 6), order=None)
    want = typed_linear(given.x, given.weight, given.bounds)
    assert torch.equal(typed_linear(given.x, given.weight, segments), want)


def test_no_copy_of_all_rows_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[int] = []
    select = torch.Tensor.index_select

    def recorded(self: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
        gathered.append(index.numel())
        return select(self, dim, index)

    monkeypatch.setattr(segment_products, "BLOCK_VALUES", 64)
    monkeypatch.setattr(torch.Tensor, "index_select", recorded)
    given = problem([50, 3], 8, 4, rows=True)
    typed_linear(given.x, given.weight, given.bounds, **given.index)
    typed_weight_grad(given.x, given.grad, given.bounds, x_rows=given.index["rows"])
    assert max(gathered) == 8 and sum(gathered) == 2 * 53


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.randn(3, 4, 8)}, "weight: wrong shape"),
        ({"weight": torch.randn(2, 5, 8)}, "x, weight: do not fit"),
        ({"weight": torch.randn(2, 4, 8).double()}, "x, weight: do not fit"),
        ({"weight": torch.randn(2, 2, 4, 8)}, "x, weight: do not fit"),
        ({"rows": torch.zeros(10).int(), "scale": torch.ones(9)}, "rows, scale: wrong shape"),
        ({"scale": torch.ones(9)}, "scale: wrong shape"),
        ({"num_out": 12}, "num_out: wrong number"),
        ({"rows": torch.zeros(10).int()}, "ptr: not the bounds"),
        ({"segments": Bounds(torch.tensor([0, 5, 10]), (5, 5))}, "segments: another number"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    call = {"x": torch.randn(11, 4), "weight": torch.randn(2, 4, 8)}
    call["segments"] = Bounds(torch.tensor([0, 5, 11]))  # type: ignore[assignment]
    with pytest.raises(InvalidArgument, match=message):
        typed_linear(**(call | change))  # type: ignore[arg-type]


def test_gradients_refuse_what_does_not_fit() -> None:
    bounds = Bounds(torch.tensor([0, 5]))
    with pytest.raises(InvalidArgument, match="x, grad: do not fit"):
        typed_weight_grad(torch.randn(5, 2, 4), torch.randn(5, 3, 4), bounds)
    with pytest.raises(InvalidArgument, match="x: no heads"):
        typed_weight_grad(torch.randn(5, 4), torch.randn(5, 4), bounds, heads=True)
