"""Lists of tiles: every place once, segment by segment, and padding that is nobody's."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.runtime.row_tiles import make_row_tiles, row_tiles


@pytest.mark.parametrize(
    "lengths",
    [[5], [0, 9, 0, 0, 4, 1, 0], [0, 0], [1] * 7, [8, 4, 12], [3, 100]],
)
@pytest.mark.parametrize("size", [1, 4, 7])
def test_tiles_cover_every_place_once(lengths: list[int], size: int) -> None:
    ptr = torch.tensor([0, *lengths]).cumsum(0)
    made = make_row_tiles(ptr.int(), sum(lengths), size)
    assert made.tiles.dtype == made.first.dtype == torch.int32
    live = [tuple(tile[:3]) for tile in made.tiles.tolist() if tile[2]]
    places = [(segment, first + i) for segment, first, count in live for i in range(count)]
    types = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    assert places == list(zip(types.tolist(), range(sum(lengths)), strict=True))
    assert all(0 < count <= size for *_, count in live)
    # Those of a segment are where `first` says, and padding is at the end.
    counts = [-(-length // size) for length in lengths]
    assert made.first.tolist() == [0, *torch.tensor(counts).cumsum(0).tolist()]
    assert [bool(tile[2]) for tile in made.tiles.tolist()] == [True] * sum(counts) + [False] * (
        len(made.tiles) - sum(counts)
    )


def test_bounds_outside_are_cut_off() -> None:
    for bounds in ([-3, 2, 1, 50], [0, 10, 0, 10, 0, 10]):
        tiles, first = make_row_tiles(torch.tensor(bounds), 10, 4)
        live = [tile for tile in tiles.tolist() if tile[2]]
        assert live and all(place >= 0 and place + count <= 10 for _, place, count, _ in live)
        assert first.max() <= len(tiles)


def test_lists_are_kept_until_the_bounds_change() -> None:
    ptr = torch.tensor([0, 3, 7])
    first = row_tiles(ptr, 7, 4)
    assert row_tiles(ptr, 7, 4) is first and row_tiles(ptr, 7, 2) is not first
    assert row_tiles(ptr.clone(), 7, 4) is not first
    ptr[1] = 5
    assert row_tiles(ptr, 7, 4).tiles[0].tolist() == [0, 0, 4, 0]
    with torch.inference_mode():
        assert row_tiles(torch.tensor([0, 3, 7]), 7, 4).tiles.equal(first.tiles)
