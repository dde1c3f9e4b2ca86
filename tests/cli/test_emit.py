"""``emit``: programs, passes, steps and kernels, of our models and of a user's file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnn_backend.errors import InvalidArgument

Invoke = Callable[..., Any]

PROGRAM = """
import torch
from gnn_backend.program import linear, program, relu


@program
def pair(edge, x, weight, slope=1.0):
    message = linear(x[edge.src], weight[edge.type])
    return edge.sum(relu(message) * slope)


def example(relations):
    nodes, types = relations.graph.num_src, relations.num_edge_types
    return {"x": torch.empty(nodes, 4), "weight": torch.empty(types, 4, 6), "slope": 0.5}


def example_other(relations):
    return [1]


@program
def other(edge, x):
    return edge.sum(x[edge.src])


plain = len
"""


@pytest.fixture
def typed_file(tmp_path: Path) -> Path:
    """60 edges of 3 types between 12 nodes of 2 types."""
    g = np.random.default_rng(0)
    triples = np.stack([g.integers(0, n, 60) for n in (12, 3, 12)], 1).astype(np.int32)
    path = tmp_path / "typed.npz"
    np.savez(path, triples=triples, num_nodes=12, node_type=np.arange(12) % 2)
    return path


@pytest.fixture
def program_file(tmp_path: Path) -> Path:
    path = tmp_path / "layers.py"
    path.write_text(PROGRAM)
    return path


def document(invoke: Invoke, tmp_path: Path, *arguments: str | Path) -> dict[str, Any]:
    out = tmp_path / "emitted.json"
    result = invoke("emit", *arguments, "--section", "program", "--json", out)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_what_is_printed(invoke: Invoke, typed_file: Path) -> None:
    result = invoke("emit", "rgat", "--graph", typed_file, "--backward", "--heads", "2",
                    "--in", "8", "--out", "8")  # fmt: skip
    assert result.exit_code == 0, result.output
    text = result.stdout
    places = [
        text.index(part)
        for part in (
            "==== program: 7 logical lines",
            "@program\ndef rgat(",
            "==== forward, IR: ",
            "%x[edge.src] : source [8]",
            "==== forward, IR after hoist: product rows 120 -> ",
            "==== backward, IR: ",
            "==== forward, ",
            "traversal of edge by destination: lse, softmax -> [12, 2], [12, 8]",
            "        edge by destination, [2, 4]",
            "==== generated traversal_",
            '#include "program.cuh"',
            "==== instance of a kernel, ",
            "program lines",
        )
    ]
    assert "==== backward, " in text and len(places) == 13


@pytest.mark.parametrize(
    ("section", "there", "gone"),
    [
        ("program", "def rgcn(", "return %"),
        ("ir", "return %", "def rgcn("),
        ("steps", "traversal of", "#include"),
        ("source", "#include", "traversal of"),
        ("source,ir", "return %", "def rgcn("),
    ],
)
def test_sections(invoke: Invoke, typed_file: Path, section: str, there: str, gone: str) -> None:
    result = invoke("emit", "rgcn", "--graph", typed_file, "--section", section)
    assert result.exit_code == 0, result.output
    assert there in result.stdout and gone not in result.stdout
    assert "after passes" in result.stdout


def test_the_document(invoke: Invoke, typed_file: Path, tmp_path: Path) -> None:
    found = document(invoke, tmp_path, "hgt", "--graph", typed_file, "--backward")
    assert found["graph"] == {
        "name": str(typed_file), "num_nodes": 12, "num_edges": 60, "num_edge_types": 3,
        "num_node_types": 2,
    }  # fmt: skip
    assert found["program"]["logical_lines"] == 9  # decorator, def, docstring, 6
    for direction, counts in zip(("forward", "backward"), found["summary"], strict=True):
        one = found[direction]
        names = {name for step in one["steps"] for name in step["modules"]}
        assert names and names <= found["modules"].keys()
        assert counts["steps"] == len(one["steps"])
        made = [found["modules"][n] for n in names if found["modules"][n]["generated"]]
        assert counts["generated_lines"] == sum(m["text"].count("\n") for m in made) > 0
    before = [p["before"]["rows"] for p in found["forward"]["passes"]]
    assert before[0] == 3 * 12 + 2 * 60  # projections of nodes, and products at edges
    for name, module in found["modules"].items():
        if module["generated"]:
            text = module["text"].replace(name, "NAME")
            assert name.endswith(hashlib.sha256(text.encode()).hexdigest()[:12])


def test_numba_and_types(invoke: Invoke, typed_file: Path, tmp_path: Path) -> None:
    arguments = ("--graph", typed_file, "--target", "numba", "--types")
    edges = document(invoke, tmp_path, "hgt", *arguments, "edge")
    assert edges["graph"]["num_node_types"] == 1 and edges["graph"]["num_edge_types"] == 3
    none = document(invoke, tmp_path, "hgt", *arguments, "none")
    assert none["graph"]["num_edge_types"] == 1
    assert all("def forward(block, address)" in m["text"] for m in edges["modules"].values())


def test_a_graph_without_types_has_one(invoke: Invoke, graph_file: Path, tmp_path: Path) -> None:
    found = document(invoke, tmp_path, "rgcn", "--graph", graph_file)
    assert found["graph"]["num_edge_types"] == 1 and found["graph"]["num_edges"] == 300


def test_options_decide(invoke: Invoke, typed_file: Path, tmp_path: Path) -> None:
    rows = {}
    for name in ("vanilla", "c"):
        found = document(invoke, tmp_path, "rgcn", "--graph", typed_file, "--options", name)
        rows[name] = found["forward"]["steps"][0]["spec"][0].split(" rows")[0]
    assert rows["vanilla"] == "60" and int(rows["c"]) < 60


def test_a_program_of_a_users_file(
    invoke: Invoke, typed_file: Path, program_file: Path, tmp_path: Path
) -> None:
    model = f"{program_file}:pair"
    found = document(invoke, tmp_path, model, "--graph", typed_file)
    assert found["program"]["source"].startswith("@program\ndef pair(")
    assert "0.5" in found["forward"]["start"]
    program_file.write_text(PROGRAM.replace("relu(message)", "message * message"))
    changed = document(invoke, tmp_path, model, "--graph", typed_file)
    first, second = (
        {n for n, m in f["modules"].items() if m["generated"]} for f in (found, changed)
    )
    assert first and first != second


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("gcn", "MODEL: unknown; got gcn, expected rgcn, rgat, hgt or FILE.py:NAME"),
        ("missing.py:pair", "no such file"),
        ("{file}:none", "no none in the file"),
        ("{file}:plain", "plain is no program; got"),
        ("{file}:other", "example gives no arguments"),
        ("{bare}:f", "Write def example\\(relations\\) beside the program"),
        ("{broken}:f", "cannot be imported; got ZeroDivisionError"),
    ],
)
def test_wrong_models(
    invoke: Invoke, typed_file: Path, program_file: Path, model: str, message: str
) -> None:
    bare, broken = program_file.with_name("bare.py"), program_file.with_name("broken.py")
    bare.write_text(
        "from gnn_backend.program import program\n@program\ndef f(edge, x):\n"
        "    return edge.sum(x[edge.src])\n"
    )
    broken.write_text("1 / 0\n")
    named = model.format(file=program_file, bare=bare, broken=broken)
    with pytest.raises(InvalidArgument, match=message):
        invoke("emit", named, "--graph", typed_file)


def test_wrong_graphs_and_sizes(invoke: Invoke, typed_file: Path, graph_file: Path) -> None:
    with pytest.raises(InvalidArgument, match="no such file"):
        invoke("emit", "rgcn", "--graph", "missing.npz")
    with pytest.raises(InvalidArgument, match="the graph's edges have no types; got edge"):
        invoke("emit", "rgcn", "--graph", graph_file, "--types", "edge")
    untyped = typed_file.with_name("untyped.npz")
    np.savez(untyped, triples=np.zeros((1, 3), np.int32))
    with pytest.raises(InvalidArgument, match="the graph's nodes have no types"):
        invoke("emit", "rgcn", "--graph", untyped, "--types", "edge,node")
    with pytest.raises(InvalidArgument, match="does not divide"):
        invoke("emit", "rgat", "--graph", typed_file, "--heads", "3")
