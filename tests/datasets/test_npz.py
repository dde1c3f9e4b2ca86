"""Files that hold no graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnn_backend import datasets
from gnn_backend.errors import InvalidArgument


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": [[1.0]]}, "no usable edge_index"),
        ({"edge_index": [[0.0], [1.0]]}, "no usable edge_index"),
        ({"edge_index": [0, 1]}, "no usable edge_index"),
        ({"edge_index": [[0], [5]], "num_nodes": 3}, "out of range"),
        ({"edge_index": [[-1], [0]]}, "out of range"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    file = tmp_path / "bad.npz"
    np.savez(file, **fields)
    with pytest.raises(InvalidArgument, match=message):
        datasets.load(str(file))


def test_files_that_are_no_archives_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "text.npz"
    file.write_text("not an archive")
    with pytest.raises(InvalidArgument, match="not an npz archive"):
        datasets.load(str(file))
