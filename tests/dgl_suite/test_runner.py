"""The runner of DGL's tests, on an invented checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dgl", reason="DGL is not installed")

from tests.dgl_suite import expected, guard, summary
from tests.dgl_suite.__main__ import EXPECTED

ROOT = Path(__file__).parents[2]
TESTS = """
import backend as F, dgl, pytest, torch

@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_sum(count):
    g = dgl.rand_graph(5, 9)
    g.ndata["x"] = torch.ones(5, 2)
    g.update_all(dgl.function.copy_u("x", "m"), dgl.function.sum("m", "y"))
    assert g.ndata["y"].sum() == 18

def test_wrong():
    assert dgl.rand_graph(5, 9).num_edges() == F.answer

def test_nothing_of_dgl():
    pass

def started(queue):
    queue.put(type(dgl.rand_graph(5, 9)._graph).__name__)

def test_process():
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=started, args=(queue,))
    process.start()
    assert queue.get(timeout=50) == type(dgl.rand_graph(5, 9)._graph).__name__
    process.join()
"""
EXPECTATIONS = """
reasons:
  odd: it is an odd test
not_run:
  common/left: odd
serial:
  common/test_sums.py::test_sum[*: odd
known:
{known}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    tests = tmp_path / "tests"
    for folder in ("python/common/left", "python/pytorch"):
        (tests / folder).mkdir(parents=True)
    (tests / "backend.py").write_text("answer = 8\n")
    (tests / "python/common/test_sums.py").write_text(TESTS)
    (tests / "python/pytorch/test_sums.py").write_text("def test_other(): pass\n")
    (tests / "python/common/left/test_left.py").write_text("raise SystemExit('collected')\n")
    return tmp_path


def run(checkout: Path, known: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    file, out = checkout / "expected.yaml", checkout / "out.json"
    file.write_text(EXPECTATIONS.format(known=known))
    code = subprocess.run(
        [sys.executable, "-m", "tests.dgl_suite", "--checkout", str(checkout), "--expected",
         str(file), "--json", str(out), *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    ).returncode  # fmt: skip
    return code, json.loads(out.read_text())


WRONG = "  - id: common/test_sums.py::test_wrong\n    reason: odd\n"
GONE = "  - id: common/test_sums.py::test_gone*\n    reason: odd\n"
FINE = "  - id: common/test_sums.py::test_sum[{}]\n    reason: odd\n"


def test_known_failures_on_resident_graphs(checkout: Path) -> None:
    known = WRONG + "    when: [standin]\n" + FINE.format(1) + "    flaky: true\n"
    known += GONE + "    when: [cuda]"
    code, found = run(checkout, known, "--standin")
    assert code == 0
    assert (found["passed"], found["failed"], found["failed as expected"]) == (7, 0, 1)
    assert (found["on resident graphs"], found["accelerated"]) == (6, 4)
    assert found["reasons"] == {"odd": 1} and not found["detours"]


def test_everything_that_can_be_wrong(checkout: Path) -> None:
    code, found = run(checkout, GONE + FINE.format(2) + FINE.format("[]2"), "--stock", "common")
    assert code == 1
    assert list(found["failures"]) == ["common/test_sums.py::test_wrong"]
    assert found["unexpected passes"] == ["common/test_sums.py::test_sum[2]"]
    assert len(found["unmatched"]) == 2
    assert found["on resident graphs"] == 0


@pytest.mark.thorough
def test_shards_hold_every_test_once(checkout: Path) -> None:
    """Those of a serial group are all in one of them."""
    shards = []
    for shard in ("1/2", "2/2"):
        code, found = run(checkout, WRONG, "--stock", "--shard", shard)
        assert code == 0
        shards.append(found)
    counts = [found["passed"] + found["failed as expected"] for found in shards]
    assert counts == [4, 4]
    assert (shards[0]["passed"], shards[1]["failed as expected"]) == (4, 1)


@pytest.mark.thorough
def test_shards_are_merged(checkout: Path) -> None:
    files = []
    for shard in ("1/2", "2/2"):
        _, found = run(checkout, GONE, "--stock", "--shard", shard)
        files.append(checkout / f"{shard[0]}.json")
        files[-1].write_text(json.dumps(found))
    out = checkout / "merged.json"
    assert not summary.merge_files(out, files)
    merged = json.loads(out.read_text())
    _, whole = run(checkout, GONE, "--stock")
    for name in set(whole) - {"seconds", "failures"}:
        assert merged[name] == whole[name], name
    assert list(merged["failures"]) == list(whole["failures"])
    assert merged["areas"]["rest"] == {"passed": 7, "failed": 1}
    assert merged["missing shards"] == []
    assert summary.merge([json.loads(files[1].read_text())])["missing shards"] == [1]
    with pytest.raises(ValueError, match="do not belong together"):
        summary.merge(json.loads(files[0].read_text()) for _ in range(2))


HANGING = """
import os, pathlib, signal, subprocess, time

HERE = pathlib.Path(__file__).parent

def test_before():
    pass

def test_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})  # as in C code: no time limit
    HERE.joinpath("pid").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
    time.sleep(600)

def test_leaves_something(tmp_path):
    import multiprocessing, torch.distributed

    multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,)).start()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", world_size=1, rank=0
    )

def test_finds_nothing():
    import multiprocessing, torch.distributed

    assert not multiprocessing.active_children()
    assert not torch.distributed.is_initialized()

def test_crashes():
    os.kill(os.getpid(), signal.SIGSEGV)

def test_after():
    assert not HERE.joinpath("again").exists()
    HERE.joinpath("again").touch()
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_goes_on_after_what_hangs_or_crashes(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "GRACE_SECONDS", 2)
    monkeypatch.chdir(ROOT)
    folder = checkout / "tests/python/pytorch"
    (folder / "test_sums.py").write_text(HANGING)
    arguments = ["--checkout", str(checkout), "--stock", "--timeout", "10", "pytorch"]
    shard = guard.Shard(arguments, 10, {"pytorch/test_sums.py::test_crashes": "odd"}.get)
    shard.run()
    found = shard.found
    assert (found["passed"], found["failed"], found["failed as expected"]) == (4, 1, 1)
    assert found["failures"] == {"pytorch/test_sums.py::test_hangs": "hung: ended after 12 s"}
    why = found["expected failures"]["pytorch/test_sums.py::test_crashes"]
    assert "SIGSEGV" in why
    assert found["reasons"] == {"odd": 1} and not found["aborted"]
    assert found["areas"]["rest"] == {"passed": 4, "failed": 1, "failed as expected": 1}
    assert not alive(int((folder / "pid").read_text()))


def alive(process: int) -> bool:
    """Whether a process runs; one that ended and was not asked for yet does not."""
    state = Path(f"/proc/{process}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_tells_why_nothing_ran(checkout: Path) -> None:
    (checkout / "tests/python/pytorch/test_sums.py").write_text("import nothing_of_this_name\n")
    code, found = run(checkout, "", "--stock", "pytorch")
    assert code == 1 and found["aborted"] == "its process ended (code 2)"


def test_shares_of_the_areas(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = {
        "pytorch/nn/conv/a.py::x": "passed", "pytorch/nn/a.py::y": "failed",
        "pytorch/nn/a.py::z": "failed", "pytorch/nn/a.py::u": "skipped",
        "common/ops/a.py::x": "passed", "pytorch/nn.py::x": "passed",
    }  # fmt: skip
    found = summary.by_area(outcomes, ["pytorch/nn/a.py::z"])
    assert found["nn"] == {"passed": 1, "failed": 1, "failed as expected": 1, "skipped": 1}
    assert (found["ops"], found["rest"]) == ({"passed": 1}, {"passed": 1})
    numbers = dict.fromkeys(summary.NUMBERS, 0)
    summary.report({"areas": found, "aborted": "", "mode": "cuda", "shard": [1, 1], **numbers})
    assert "nn: 33.3 % passed (1 passed, 1 failed, 1 failed as expected, 1 skipped)" in (
        capsys.readouterr().out
    )


def test_the_list_itself() -> None:
    found = expected.read(EXPECTED)
    assert found.reasons and set(found.not_run.values()) <= set(found.reasons)
    used = {known.reason for known in found.known}
    used |= {*found.not_run.values(), *found.serial.values()}
    assert used == set(found.reasons), "a reason that nothing has"
    tests = "pytorch/dataloading/test_dataloader.py::test_"
    assert found.group(f"{tests}node_dataloader[True-cpu-full-idtype0]") == 0
    assert found.group(f"{tests}node_dataloader[False-cpu-full-idtype0]") is None
    assert found.group(f"{tests}neighbor_nonuniform[False-True-cpu-idtype0]") == 0
    assert found.group(f"{tests}neighbor_nonuniform[True-False-cpu-idtype0]") is None
    assert found.group("pytorch/optim/test_optim.py::test_sparse_adam[1]") == 1


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ("  - id: a::b\n    reason: even", "unknown reason"),
        ("  - id: a::b\n    reason: odd\n    when: [gpu]", "unknown condition"),
        ("  - id: a::b\n    reason: odd\n    why: so", "unknown keys"),
        ("  - id: a::b\n    reason: odd\n  stray: x", "not understood"),
    ],
)
def test_mistakes_in_the_list(tmp_path: Path, known: str, text: str) -> None:
    (tmp_path / "e.yaml").write_text(EXPECTATIONS.format(known=known))
    with pytest.raises(ValueError, match=text):
        expected.read(tmp_path / "e.yaml")
