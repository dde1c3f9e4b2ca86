"""Times of every path, the constants fitted to them, and the regret of choosing by these."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from gnn_backend.bench import paths, regret, timing
from gnn_backend.cli.app import app
from gnn_backend.profile import profile
from gnn_backend.runtime.sparse import model
from gnn_backend.runtime.sparse.model import CHUNKS, CUSPARSE, Work
from tests.bench.test_operators import graph_file
from tests.ops.conftest import emulator, unoptimised

__all__ = ["emulator", "graph_file", "unoptimised"]
NODES, WIDTHS = 10_000, (64, 256)
SIZES = {"small": 10**5, "medium": 10**6, "dense": 10**7, "large": 3 * 10**7}


def milliseconds(work: Work, name: str) -> float:
    """Times that follow the model: long tasks want many edges, tiles shared columns."""
    path, _, chunk = name.partition(" ")
    if path != "rows":
        return 1.2 * sum(work.terms(path)) + 0.002
    wanted = model.longest(work.num_edges, work.row_bytes, 3000, 512, 64, 1024)
    off = abs(CHUNKS.index(int(chunk)) - CHUNKS.index(wanted))
    return (sum(work.terms("rows")) + 0.002) * (1 + 0.1 * off)


def results(dtype: str = "bfloat16") -> dict[str, Any]:
    item, rows = getattr(torch, dtype).itemsize, []
    for graph, edges in SIZES.items():
        tiles = edges / (100 if graph == "dense" else 16)
        for width in WIDTHS:
            work = Work(edges, NODES, NODES, width, item, tiles)
            lengths = [f"rows {chunk}" for chunk in CHUNKS]
            names = {"sum": [*lengths, "tiles"], "max": lengths}
            times: dict[str, dict[str, float | None]] = {
                case: {name: milliseconds(work, name) for name in own}
                for case, own in names.items()
            }
            times["sum"][CUSPARSE] = 1e-9  # shown, never chosen
            rows.append({"graph": graph, "dtype": dtype, "width": width, "num_nodes": NODES,
                         "num_edges": edges, "max_in_degree": 9, "times": times,
                         "tiles": {"dst": tiles, "src": tiles}})  # fmt: skip
    return {"benchmark": "paths", "date": "2026-01-01T00:00:00+00:00", "graphs": rows,
            "device": {"name": "none"}}  # fmt: skip


def test_every_choice_is_timed(
    graph_file: Path, unoptimised: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[set[str]] = []

    def clock(call: Callable[[], Any]) -> float:
        with profile() as record:
            call()
        ran.append({name for _, name in record.launches})
        return float(len(ran))

    monkeypatch.setattr(timing, "brief_ms", clock)
    monkeypatch.setattr(paths, "device_report", lambda: {"name": "none"})
    settings = paths.Settings((16,), ("bfloat16",), "cpu")
    document = paths.run([str(graph_file)], settings, lambda line: None)
    (row,) = json.loads(json.dumps(document))["graphs"]
    assert row["tiles"]["dst"] > 0 and row["times"].keys() == paths.CASES.keys()
    lengths = [f"rows {chunk}" for chunk in CHUNKS]
    for case, times in row["times"].items():
        assert list(times) == lengths + ["tiles"] * case.startswith("sum")
    tiled = [names for names in ran if any("block_sum" in name for name in names)]
    assert len(tiled) == 3 and len(ran) == 5 * len(CHUNKS) + 3
    assert any("weighted" in name for name in tiled[2])


def test_out_of_memory_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Callable[[], Any]) -> float:
        raise torch.cuda.OutOfMemoryError("no")

    monkeypatch.setattr(timing, "brief_ms", full)
    assert paths._time(lambda: None) is None


def test_what_is_fitted_is_what_was_measured() -> None:
    passes = regret.measured([results()])
    constants = regret.fit(passes, "here")
    assert constants["chunks"].keys() == {"sum 16", "extreme 16"}
    assert constants["paths"].keys() == {"sum 16"}
    assert constants["paths"]["sum 16"].keys() == {"rows", "tiles"}
    judged = regret.judge(passes, constants)
    assert regret.summary(judged)["median"] == 0 and regret.summary(judged)["worst"] < 0.15
    taken = {one.measured.graph for one in judged if one.chosen == "tiles"}
    assert taken == {"dense"}
    before = regret.summary(regret.judge(passes, regret.UNFITTED))
    assert before["worst"] > 0.5 and before["count"] == len(passes) == 4 * 2 * 2
    assert {one.measured.graph for one in regret.held_out(passes)} == set(SIZES)


def test_regret_is_the_time_lost() -> None:
    passes = regret.measured([results()])
    (one,) = (p for p in passes if (p.graph, p.width, p.case) == ("dense", 64, "sum"))
    assert CUSPARSE not in one.times
    (found,) = regret.judge([one._replace(times={"rows 64": 3.0, "rows 512": 2.0})], {
        "chunks": {"sum 16": [10**9, 512, 64, 1024]}, "paths": {}
    })  # fmt: skip
    assert (found.chosen, found.best, found.regret) == ("rows 64", "rows 512", 0.5)
    # What was not measured is no excuse.
    (found,) = regret.judge([one._replace(times={"rows 64": 3.0, "rows 512": 2.0})], {
        "chunks": {"sum 16": [10**9, 512, 128, 1024]}, "paths": {}
    })  # fmt: skip
    assert found.regret == 0.5


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = tmp_path / "paths.json", tmp_path / "fitted.json"
    file.write_text(json.dumps(results()))
    run = CliRunner().invoke
    shown = run(app, ["bench", "show", str(file)])
    assert shown.exit_code == 0 and "cusparse" in shown.stdout
    fitted = run(app, ["bench", "fit", str(file), "--out", str(out)])
    assert fitted.exit_code == 0, fitted.output
    constants = json.loads(out.read_text())
    assert constants == regret.fit(regret.measured([results()]), "paths.json: none, 2026-01-01")
    monkeypatch.setattr(model, "constants", lambda: constants)
    judged = run(app, ["bench", "regret", str(file), "--markdown"])
    assert judged.exit_code == 0 and "| sum | bfloat16 | 8 | 0.0% |" in judged.stdout
    damaged = results()
    del damaged["graphs"][0]["tiles"]
    file.write_text(json.dumps(damaged))
    failed = run(app, ["bench", "regret", str(file)])
    assert failed.exit_code and "damaged results" in failed.output
    assert "no result of" in run(app, ["bench", "regret", str(out)]).output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu() -> None:
    failed = CliRunner().invoke(app, ["bench", "spmm", "--paths"])
    assert failed.exit_code and "no CUDA device" in failed.output
