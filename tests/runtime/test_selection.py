"""Lane layouts and chunk lengths fit the kernels for every row that may come."""

from __future__ import annotations

import pytest

from gnn_backend.graph.splits import MAX_CHUNK
from gnn_backend.runtime import selection
from gnn_backend.runtime.selection import (
    DTYPE_NAMES,
    PER_ACCESS,
    WARP,
    all_shapes,
    schedule_for,
    shape_for,
)

DTYPES = ("f32", "bf16", "f16")


def power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 24, 40, 100])
def test_layouts_hold_every_width(dtype: str, heads: int) -> None:
    for dim in range(1, selection.MAX_HEAD_DIM + 1):
        shape = shape_for(dtype, heads, dim)
        held = shape.lanes * shape.values
        assert held >= dim and shape.full == (held == dim and shape.vector), dim
        assert power_of_two(shape.lanes) and power_of_two(shape.heads), dim
        assert heads % shape.heads == 0 and shape.lanes * shape.heads <= WARP, dim
        assert shape.tasks * shape.lanes * shape.heads == WARP, dim
        assert shape.heads == 1 or shape.full, dim  # heads side by side have no tail to mask
        width = PER_ACCESS[dtype] if shape.vector else 1
        assert shape.values % width == 0, dim
        assert not shape.vector or dim % width == 0, dim


def test_all_shapes_are_all() -> None:
    known = set(all_shapes())
    for dtype in DTYPES:
        for heads in range(1, 70):
            for dim in (*range(1, 140), 192, 256, 320, 500, 512, 768, 1000, 1024):
                assert shape_for(dtype, heads, dim) in known, (dtype, heads, dim)


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [("f32", (8, 2, 8, 2)), ("bf16", (4, 2, 16, 4)), ("f16", (4, 2, 16, 4))],
)
def test_the_measured_shapes(dtype: str, layout: tuple[int, int, int, int]) -> None:
    shape = shape_for(dtype, 2, 64)
    assert (shape.lanes, shape.heads, shape.values, shape.tasks) == layout
    assert shape.vector and shape.full
    assert shape.name == "l{}h{}k{}vf".format(*layout[:3])


def test_names_tell_shapes_apart() -> None:
    shapes = all_shapes()
    assert len({shape.name for shape in shapes}) == len(shapes)


def test_schedules() -> None:
    for dtype, shape in ((d, s) for d in DTYPE_NAMES.values() for s in all_shapes(d)):
        schedule = schedule_for(dtype, shape)
        for tuning in (schedule.forward, schedule.backward_dst, schedule.backward_src):
            assert power_of_two(tuning.unroll)  # sums are spread over a power of two of edges
            assert tuning.min_blocks >= 1


def test_chunks_grow_with_the_graph() -> None:
    chunks = [selection.chunk_for(n, 2) for n in (0, 1, 10**4, 10**6, 10**8, 10**9, 2**33)]
    assert chunks == sorted(chunks)
    assert chunks[0] >= 32 and chunks[-1] <= MAX_CHUNK
