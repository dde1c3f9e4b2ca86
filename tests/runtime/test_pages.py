"""Large tensors on huge pages: advice that changes no value."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gnn_backend.runtime import pages


@pytest.mark.parametrize("rows", [0, 3, 20_000])
def test_shape_and_dtype(rows: int) -> None:
    tensor = pages.fresh(rows, 2, 64, dtype=torch.float32).fill_(3.0)
    assert (tensor.shape, tensor.dtype) == ((rows, 2, 64), torch.float32)
    assert torch.all(tensor == 3.0)


def test_like_is_contiguous() -> None:
    tensor = pages.fresh_like(torch.zeros(4, 6, dtype=torch.float64).t())
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == ((6, 4), torch.float64, True)


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(start, size) of what the system is asked for; its pages have 2 MiB."""
    calls: list[tuple[int, int]] = []

    def call(start: int, size: int, advice: int) -> int:
        calls.append((start, size))
        return 0

    monkeypatch.setattr(pages, "_madvise", lambda: (call, 2 << 20))
    return calls


def test_only_whole_pages_inside_the_tensor_are_advised(advised: list[tuple[int, int]]) -> None:
    tensor = pages.fresh(9 << 20, dtype=torch.uint8)
    [(start, size)] = advised
    assert start % (2 << 20) == size % (2 << 20) == 0
    assert tensor.data_ptr() <= start
    assert start + size <= tensor.data_ptr() + tensor.numel()
    assert size >= 6 << 20


def test_small_tensors_are_not_advised(advised: list[tuple[int, int]]) -> None:
    pages.fresh(pages.LEAST_BYTES - 1, dtype=torch.uint8)
    assert not advised


def test_systems_without_huge_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pages._madvise.cache_clear()
    monkeypatch.setattr(pages, "_SIZE", tmp_path / "not-there")
    try:
        assert pages._madvise() is None
        assert pages.fresh(9 << 20, dtype=torch.uint8).shape == (9 << 20,)
    finally:
        pages._madvise.cache_clear()
