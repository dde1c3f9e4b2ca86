"""Reason codes: registered, explained, and none used that is not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import gnn_backend
from gnn_backend.errors import InvalidArgument
from gnn_backend.reasons import REASONS, explain, register

SOURCES = Path(gnn_backend.__file__).parent


def test_codes_are_stable_names_with_full_sentences():
    for code, text in REASONS.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code)
        assert text.endswith(".") and len(text) > 30, code


def test_explain():
    assert "float32" in explain("dtype-float64")
    with pytest.raises(InvalidArgument, match=r"'no-such-code'.*dtype-float64"):
        explain("no-such-code")


def test_register(monkeypatch):
    monkeypatch.setattr("gnn_backend.reasons.REASONS", dict(REASONS))
    register("full-moon", "The kernel rests at full moon; wait a day.")
    register("full-moon", "The kernel rests at full moon; wait a day.")
    assert "wait" in explain("full-moon")
    with pytest.raises(InvalidArgument, match="full-moon"):
        register("full-moon", "Something else.")


def codes_in(tree: ast.AST) -> set[str]:
    """Codes given to Unsupported(...), and strings returned by functions about reasons."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Unsupported":
            found |= {a.value for a in node.args[:1] if isinstance(a, ast.Constant)}
        if isinstance(node, ast.FunctionDef) and re.search("eligible|reason", node.name):
            returned = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
            found |= {
                c.value
                for value in returned
                if value is not None
                for c in ast.walk(value)
                if isinstance(c, ast.Constant) and isinstance(c.value, str)
                if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", c.value)
            }
    return found


def test_every_code_in_the_sources_is_registered():
    files = [f for top in (SOURCES, SOURCES / "adapters") for f in top.rglob("*.py")]
    used = set().union(*(codes_in(ast.parse(f.read_text())) for f in files))
    assert len(used) > 5, "the search finds nothing"
    assert used <= set(REASONS), f"not registered: {sorted(used - set(REASONS))}"
