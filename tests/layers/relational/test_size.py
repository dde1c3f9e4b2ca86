"""The three models stay as short as they are said to be."""

from __future__ import annotations

import ast
from pathlib import Path

from gnn_backend import layers

FOLDER = Path(layers.__file__).parent / "relational"


def logical_lines(source: str) -> int:
    """Statements, imports and docstrings among them, and decorators."""
    nodes = list(ast.walk(ast.parse(source)))
    decorated = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    statements = sum(isinstance(n, ast.stmt) for n in nodes)
    return statements + sum(len(n.decorator_list) for n in decorated)


def test_three_models_in_51_logical_lines() -> None:
    sources = [(FOLDER / f"{name}.py").read_text() for name in ("rgcn", "rgat", "hgt")]
    assert sum(map(logical_lines, sources)) <= 51
    assert not any("fmt:" in source or ";" in source.replace("; ", "") for source in sources)


def test_lines_are_counted() -> None:
    assert logical_lines("import a\n\n@d\ndef f(x):\n    '''Doc.'''\n    return g(x,\n  1)\n") == 5
