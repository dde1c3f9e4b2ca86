"""The choice of a path and a task length: configured, measured, or from the fitted model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gnn_backend import config, datasets
from gnn_backend.graph import BlockStats, Graph
from gnn_backend.ops import aggregate
from gnn_backend.profile import profile
from gnn_backend.runtime import autotune
from gnn_backend.runtime.sparse import model, selection
from gnn_backend.runtime.sparse.model import Work
from gnn_backend.runtime.sparse.selection import Form, family_of, fitted
from tests.ops.support import edges_with_hubs

BF16 = torch.bfloat16
EDGES, NUM_SRC, NUM_DST = edges_with_hubs()
#: Rows cost 1 ms a GB, tiles half of that.
PATHS = {"rows": [0, 1, 0, 0, 0, 0], "tiles": [0, 0.5, 0, 0, 0, 0]}
CONSTANTS: dict[str, Any] = {"chunks": {"sum 16": [10, 64, 32, 1024]}, "paths": {"sum 16": PATHS}}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "constants", lambda: CONSTANTS)


def graph() -> Graph:
    return Graph.from_edge_index(EDGES, NUM_SRC, NUM_DST)


def dense() -> Graph:
    return Graph.from_edge_index(datasets.block_model(2048, 256, 0.5), 2048, 2048)


def test_families() -> None:
    assert [family_of(("sum",), 0), family_of(("mean",), 3)] == ["sum", "weighted"]
    assert [family_of(("min",), 3), family_of(("max", "sum"), 0)] == ["extreme", "several"]
    assert family_of(("softmax",), 0) == "several"


def test_shipped_constants_are_complete() -> None:
    """The file is read as the fit writes it."""
    known = model.constants()
    families = {model.kind(f, size) for f in model.FAMILIES for size in (2, 4)}
    assert known["source"] and known["chunks"].keys() <= families
    assert known["paths"].keys() <= families
    terms = len(Work(1, 1, 1, 1, 1).terms("rows"))
    for paths in known["paths"].values():
        assert "rows" in paths and paths.keys() <= set(model.PATHS)
        assert all(len(p) == terms and min(p) >= 0 for p in paths.values())
    for full_tasks, whole_row, least, most in known["chunks"].values():
        assert full_tasks > 0 and whole_row > 0 and {least, most} <= set(model.CHUNKS)


def test_task_lengths_grow_with_the_work() -> None:
    lengths = [model.longest(n, 256, 1000, 512, 64, 1024) for n in (0, 10**5, 10**6, 10**8)]
    assert lengths == sorted(lengths) and lengths[0] == 64 and lengths[-1] == 1024
    assert model.longest(10**6, 64, 1000, 512, 64, 1024) < model.longest(
        10**6, 512, 1000, 512, 64, 1024
    )
    assert model.longest(10**6, 4096, 1000, 512, 64, 1024) == model.longest(
        10**6, 512, 1000, 512, 64, 1024
    )


def test_the_fastest_by_a_margin_is_predicted() -> None:
    work = Work(10**6, 1000, 1000, 64, 2, num_tiles=10**6 / 64)
    found = model.predict("sum", work, given=CONSTANTS)
    assert found.path == "tiles" and found.milliseconds.keys() == PATHS.keys()
    assert found.milliseconds["rows"] == pytest.approx(0.128)
    nearly = {**CONSTANTS, "paths": {"sum 16": {**PATHS, "tiles": [0, 3.95, 0, 0, 0, 0]}}}
    assert model.predict("sum", work, given=nearly).path == "rows"
    assert model.predict("sum", work._replace(num_tiles=None), given=CONSTANTS).path == "rows"
    assert model.predict("weighted", work, given=CONSTANTS) == model.Prediction(
        "rows", model.chunk("weighted", 10**6, 128, 2, CONSTANTS), {}
    )


def test_tables_beyond_the_cache_cost_more() -> None:
    near, far = (Work(100, 10, n, 64, 4).terms("rows")[2] for n in (1000, 10**7))
    assert near == 0 < far


def test_tiles_on_a_dense_graph(given: None) -> None:
    """Estimated, not built."""
    g, form = dense(), Form("sum", "sum", BF16, 1, 64)
    choice = fitted(g, "dst", form)
    assert choice.path == "tiles" and "rows" in choice.why
    assert not g._blocks
    assert fitted(g, "dst", form, "rows") == (
        "rows", model.chunk("sum", g.num_edges, 128, 2), "aggregation_path is 'rows'"
    )  # fmt: skip
    assert fitted(g, "dst", form._replace(dtype=torch.float64)).path == "rows"


def test_small_graphs_and_captures_are_not_sampled(
    given: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sampled(*_: object) -> BlockStats:
        raise AssertionError("a device-to-host copy")

    monkeypatch.setattr(Graph, "block_stats", sampled)
    form = Form("sum", "sum", BF16, 1, 64)
    assert fitted(graph(), "dst", form).path == "rows"
    assert fitted(dense(), "dst", form, may_wait=False).path == "rows"
    assert fitted(dense(), "dst", form._replace(family="extreme", reduce="max")).path == "rows"


def test_what_runs_is_said(unoptimised: None) -> None:
    g, x = graph(), torch.randn(NUM_SRC, 16, requires_grad=True)
    with profile() as record:
        aggregate(g, x, "sum").sum().backward()
        aggregate(g, x, ("max", "mean"))
        with config.override(aggregation_path="cusparse"):
            aggregate(g, x, "sum")
    texts = list(record.choices)
    assert texts[0] == "sum: rows, at most 32 neighbours a task (the number of edges)"
    assert texts[1].startswith("sum by source: rows")
    assert texts[2].startswith("max, mean: rows")
    assert texts[3].endswith("(not cusparse: there is no cuSPARSE on cpu)")


@pytest.fixture
def folder(unoptimised: None, tmp_path: Path) -> Iterator[Path]:
    autotune._known.clear()
    with config.override(cache_dir=tmp_path, autotune=True, cpu_target="emulator"):
        yield tmp_path / autotune.PART
    autotune._known.clear()


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_measured(reduce: str, folder: Path, tf32: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every choice is tried once, and a graph of the class takes the fastest."""
    tried: list[str] = []

    def clock(call: Any, device: torch.device) -> float:
        with profile() as record:
            call()
        (entry,) = {name.split("_f32")[0] for _, name in record.launches if "merge" not in name}
        tried.append(entry)
        return 1.0 / len(tried) if reduce == "max" else "block" not in entry

    monkeypatch.setattr(autotune, "milliseconds", clock)
    x = torch.randn(NUM_SRC, 16)
    with torch.no_grad(), profile() as record:
        first = aggregate(graph(), x, reduce)
        assert len(tried) == len(model.CHUNKS) + (reduce == "sum")
        aggregate(graph(), x, reduce)
    assert len(tried) == len(model.CHUNKS) + (reduce == "sum")
    way = "rows, at most 1024 neighbours a task" if reduce == "max" else "tiles"
    assert list(record.choices)[-1] == f"{reduce}: {way} (measured)"
    with config.override(autotune=False):
        torch.testing.assert_close(aggregate(graph(), x, reduce), first, rtol=0, atol=0.05)
    (file,) = folder.glob("*.json")
    ((key, code),) = json.loads(file.read_text()).items()
    assert key.startswith(f"{reduce}-{family_of((reduce,), 0)}-dst-float32-16-e")
    assert code == (1024 if reduce == "max" else 2)


def test_a_path_that_is_closed_to_this_graph_is_not_taken(folder: Path) -> None:
    """Tiles, which another graph of the class could take."""
    form = Form("sum", "sum", torch.float32, 1, 16)
    engine = dataclasses.make_dataclass("Engine", ["device", "emulated"])("cpu", True)
    engine.device = torch.device("cpu")
    name = f"sum-sum-dst-float32-16-{autotune.graph_class(graph())}"
    autotune.best("emulator", name, [2], lambda _: 1.0)
    chosen = selection.choose(engine, graph(), "dst", form, lambda _: None)
    assert chosen.path == "rows" and chosen.why == "the number of edges"


def test_a_pass_is_chosen_once_and_again_after_a_change(
    unoptimised: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Form] = []
    choose = selection.choose

    def counted(engine: Any, graph: Graph, direction: Any, form: Form, run: Any) -> Any:
        asked.append(form)
        return choose(engine, graph, direction, form, run)

    monkeypatch.setattr(selection, "choose", counted)
    over, x = graph(), torch.randn(NUM_SRC, 16, dtype=BF16)

    def launched(reduce: str) -> set[str]:
        with profile() as record:
            aggregate(over, x, reduce)
        return {name for _, name in record.launches}

    with config.override(cpu_target="emulator"):
        rows = [launched("sum") for _ in range(3)]
        extremes = [launched("max") for _ in range(3)]
        assert [form.reduce for form in asked] == ["sum", "max"]
        with config.override(aggregation_path="tiles"):
            tiled = launched("sum")
        assert launched("sum") == rows[0]
    assert rows[0] == rows[2] and extremes[0] == extremes[2]
    assert any("block_sum" in name for name in tiled) and tiled != rows[0]


def test_a_choice_that_is_set_by_hand_takes_the_place_of_a_settled_one(unoptimised: None) -> None:
    over, x = graph(), torch.randn(NUM_SRC, 16, dtype=BF16)
    form = Form("sum", "sum", BF16, 1, 16)
    with config.override(cpu_target="emulator"):
        aggregate(over, x, "sum")
        selection.keep(over, "dst", form, selection.Choice("tiles", 0, "by hand"))
        with profile() as record:
            aggregate(over, x, "sum")
    assert any("block_sum" in name for _, name in record.launches)
