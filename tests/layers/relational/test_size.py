"""The three models stay as short as they are said to be."""

from __future__ import annotations

from pathlib import Path

from gnn_backend import layers
from gnn_backend.ir.emission import logical_lines

FOLDER = Path(layers.__file__).parent / "relational"


def test_three_models_in_51_logical_lines() -> None:
    sources = [(FOLDER / f"{name}.py").read_text() for name in ("rgcn", "rgat", "hgt")]
    assert sum(map(logical_lines, sources)) <= 51
    assert not any("fmt:" in source or ";" in source.replace("; ", "") for source in sources)
