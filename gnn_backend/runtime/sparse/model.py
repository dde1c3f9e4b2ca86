"""The model behind the choice of a path and a task length: numbers of a graph to milliseconds.

Task lengths are the longest that leave ``full_tasks`` tasks of full length, where an edge of a row
narrower than ``whole_row`` bytes counts less, of at least ``least`` and at most ``most`` edges. The
time of a path is a sum of terms whose coefficients, none of them negative, are fitted to
measurements:

- 1, what launches take;
- bytes of gathered rows: of every edge, or of the 16 columns of every tile;
- the part of these that a cache of ``CACHE_BYTES`` cannot hold, if all rows of the table are alike;
- items: edges, or tiles times the pieces of 64 columns that a row is cut into;
- bytes of the rows that are written;
- tiles, over which weights are spread whatever the width is.

``bench fit`` makes the constants (``fitted.json``) of what ``bench spmm --paths`` measured, by the
functions of this module, so that what is fitted is what runs. ``docs/selection.md`` has the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

CHUNKS = (32, 64, 128, 256, 512, 1024)  # edges a task
#: ``full_tasks``, ``whole_row``, and the shortest and longest task, where nothing was fitted.
DEFAULT_CHUNKS = (4500, 512, 64, 1024)
#: Reductions that are chosen for alike.
FAMILIES = ("sum", "weighted", "extreme", "several")
PATHS = ROWS, CUSPARSE, TILES = ("rows", "cusparse", "tiles")
CACHE_BYTES = 50e6  # the L2 cache of an H200
COLUMNS_AT_ONCE = 64  # of a row, that a warp takes of a tile
MARGIN = 1.03  # by which rows have to be beaten
_TILE = 16
#: Where the constants are.
FITTED = Path(__file__).with_name("fitted.json")


class Work(NamedTuple):
    """What a pass reads and writes.

    Attributes
    ----------
    num_edges, num_rows, num_columns : int
        Rows are written, columns are the rows of the table that is gathered from.
    width, itemsize : int
        Values a row, bytes a value.
    num_tiles : float, optional
        Tiles of the direction, where they are considered.
    """

    num_edges: int
    num_rows: int
    num_columns: int
    width: int
    itemsize: int
    num_tiles: float | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * self.itemsize

    def terms(self, path: str) -> tuple[float, ...]:
        """What the coefficients of a path are multiplied with, in units that keep them near 1."""
        gathered, items, tiles = self.num_edges, float(self.num_edges), 0.0
        if path == TILES:
            assert self.num_tiles is not None
            gathered = round(self.num_tiles * _TILE)
            items = self.num_tiles * -(-self.width // COLUMNS_AT_ONCE)
            tiles = self.num_tiles
        far = max(0.0, 1 - CACHE_BYTES / max(1, self.num_columns * self.row_bytes))
        read, written = gathered * self.row_bytes / 1e9, self.num_rows * self.row_bytes / 1e9
        return (1e-2, read, read * far, items / 1e8, written, tiles / 1e6)


class Prediction(NamedTuple):
    """A choice from numbers alone.

    Attributes
    ----------
    path : str
    chunk : int
        Edges a task of the rows.
    milliseconds : dict of str to float
        By path, of those that could be predicted.
    """

    path: str
    chunk: int
    milliseconds: dict[str, float]


@lru_cache(maxsize=1)
def constants() -> dict[str, Any]:
    """The constants that are shipped."""
    found: dict[str, Any] = json.loads(FITTED.read_text(encoding="utf-8"))
    return found


def kind(family: str, itemsize: int) -> str:
    """Under which constants are kept: alike for both 16-bit types, and for those of 32 and 64."""
    return f"{family} {16 if itemsize == 2 else 32}"


def chunk(family: str, num_edges: int, row_bytes: int, itemsize: int = 4,
          given: Mapping[str, Any] | None = None) -> int:  # fmt: skip
    """Edges a task: few where there would be too few tasks to fill a GPU, else many.

    An edge of a narrow row is less work, so that there may be more tasks.
    """
    known = constants() if given is None else given
    fitted = known["chunks"].get(kind(family, itemsize), DEFAULT_CHUNKS)
    return longest(num_edges, row_bytes, *fitted)


def longest(
    num_edges: int, row_bytes: int, full_tasks: int, whole_row: int, least: int, most: int
) -> int:
    """The longest of ``CHUNKS`` that leaves enough tasks, and the shortest allowed otherwise."""
    work = num_edges * min(row_bytes, whole_row) // whole_row
    fitting = [
        length for length in CHUNKS if least < length <= most and work >= length * full_tasks
    ]
    return max(fitting, default=least)


def predict(
    family: str, work: Work, paths: tuple[str, ...] = PATHS, given: Mapping[str, Any] | None = None
) -> Prediction:
    """The path that is predicted to be fastest among ``paths``; rows where nothing is known."""
    known = constants() if given is None else given
    fitted = known["paths"].get(kind(family, work.itemsize), {})
    length = chunk(family, work.num_edges, work.row_bytes, work.itemsize, known)
    times = {
        path: sum(c * t for c, t in zip(fitted[path], work.terms(path), strict=True))
        for path in paths
        if path in fitted and (path != TILES or work.num_tiles is not None)
    }
    best = min(times, key=lambda path: times[path] * (1 if path == ROWS else MARGIN), default=ROWS)
    return Prediction(best if ROWS in times else ROWS, length, times)


def compared(family: str, itemsize: int) -> tuple[str, ...]:
    """Paths whose times can be predicted."""
    return tuple(constants()["paths"].get(kind(family, itemsize), {}))
