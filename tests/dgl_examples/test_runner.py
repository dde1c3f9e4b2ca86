"""The runner of DGL's examples, on an invented one, and what judges two runs."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("dgl", reason="DGL is not installed")

from gnn_backend.config import override
from tests.dgl_examples import catalogue, comparison, packages, pieces
from tests.dgl_examples.__main__ import EXAMPLES, ROOT, _environment
from tests.dgl_examples.catalogue import Example
from tests.dgl_examples.comparison import Run, judge
from tests.dgl_examples.recorder import Recorder

SCRIPT = """
import argparse, sys
import dgl, torch, torch.nn.functional as F
from helper import scale
from sklearn.model_selection import StratifiedKFold

parser = argparse.ArgumentParser()
parser.add_argument("--break-it", action="store_true")
args = parser.parse_args()
resident = type(dgl.rand_graph(2, 2)._graph).__name__ == "ResidentIndex"
g = dgl.graph((torch.arange(20), torch.arange(20).roll(1)))
x = torch.randn(20, 4)
layer = dgl.nn.GraphConv(4, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for epoch in range(6):
    out = layer(g, F.dropout(x, 0.5)) * scale
    loss = F.cross_entropy(out, torch.arange(20) % 2)
    if args.break_it and resident and epoch == 4:
        loss = loss * 1.01
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("Accuracy 0.5")
print("Accuracy 0.7")
sys.exit(0)
"""
LIST = """
examples:
  - id: tiny
    path: tiny/train.py
    what: a tiny one
    packages: [sklearn.model_selection]
    accuracy: 'Accuracy ([0-9.]+)'
  - id: broken
    path: tiny/train.py
    what: its fifth loss differs
    packages: [sklearn.model_selection]
    arguments: [--break-it]
    accuracy: 'Accuracy ([0-9.]+)'
  - id: gone
    path: tiny/gone.py
    what: not there
    accuracy: 'Accuracy ([0-9.]+)'
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "examples" / "pytorch" / "tiny"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("scale = 2.0\n")
    (tmp_path / "list.yaml").write_text(LIST)
    return tmp_path


def run(checkout: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    out = checkout / "out.json"
    code = subprocess.run(
        [sys.executable, "-m", "tests.dgl_examples", "--checkout", str(checkout), "--examples",
         str(checkout / "list.yaml"), "--json", str(out), "--device", "standin", *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    ).returncode  # fmt: skip
    return code, json.loads(out.read_text()) if out.exists() else {}


@pytest.mark.slow
def test_what_is_the_same_passes_and_what_is_not_fails(checkout: Path) -> None:
    code, found = run(checkout, "--jobs", "2")
    assert code == 1 and (found["passed"], found["failed"]) == (1, 2)
    tiny, broken, gone = found["examples"]
    assert tiny["passed"]
    assert len(tiny["losses"][0]) == len(tiny["losses"][1]) == 6
    assert tiny["difference"] < 1e-5 and tiny["accuracy"] == [0.7, 0.7]
    assert tiny["profile"]["calls"] >= 6  # operators on resident graphs
    assert "losses differ by 1.0e-02" in broken["problems"][0]
    assert [problem.split(":")[0] for problem in gone["problems"]] == ["stock", "standin"]
    assert "No such file" in gone["problems"][0]


def test_relative_paths_hold_in_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with override(test_data=Path("graphs"), kernel_path=(Path("a"), Path("b"))):
        monkeypatch.setenv("PYTHONPATH", "packages")
        found = _environment("standin", "/elsewhere")
        here = Path.cwd()
        assert found["GNN_BACKEND_TEST_DATA"] == str(here / "graphs")
        assert found["GNN_BACKEND_KERNEL_PATH"] == f"{here / 'a'}{os.pathsep}{here / 'b'}"
        assert found["PYTHONPATH"] == f"{ROOT}{os.pathsep}{here / 'packages'}"
        assert found["CUDA_VISIBLE_DEVICES"] == ""
    with override(test_data=None):
        found = _environment("cuda", "/elsewhere")
    assert found["GNN_BACKEND_TEST_DATA"] == ""
    assert found.get("CUDA_VISIBLE_DEVICES") == os.environ.get("CUDA_VISIBLE_DEVICES")


def test_wrong_arguments(checkout: Path) -> None:
    assert run(checkout, "--only", "unknown") == (2, {})
    assert run(checkout, "--steps", "0") == (2, {})
    assert run(checkout, "--checkout", str(checkout / "examples")) == (2, {})


# ---------------------------------------------------------------------- the list


def test_the_list_itself() -> None:
    from tests.dgl_examples import datasets

    found = catalogue.read(EXAMPLES)
    assert len(found) >= 10
    assert {name for e in found for name in e.data} == set(datasets.REPLACEMENTS)
    assert {name for e in found for name in e.packages} == set(packages._contents())
    for example in found:
        assert comparison.re.compile(example.accuracy).groups == 1, example.id


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  - id: a\n    colour: red", "unknown keys; got colour"),
        ("  - id: a\n    path: b", "missing keys; got id, path"),
        (LIST.partition("examples:\n")[2].partition("  - id: broken")[0] * 2, "there twice"),
    ],
)
def test_mistakes_in_the_list(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list.yaml").write_text(f"examples:\n{text}\n")
    with pytest.raises(ValueError, match=message):
        catalogue.read(tmp_path / "list.yaml")


# ---------------------------------------------------------------------- judging

EXAMPLE = Example("a", "a.py", "", r"acc (\S+)", last=2)


def made(losses: list[float], printed: str = "acc 0.5 acc 0.7", **record: Any) -> Run:
    moments = [0.1 * i for i in range(len(losses))]
    fields = {"losses": losses, "moments": moments, "seconds": 1.0, "resident": 3}
    fields |= {"device": "cpu", "profile": {"accelerated": 1, "fallbacks": 0, "detours": {}}}
    return Run(0, printed, "", fields | record)


@pytest.mark.parametrize(
    ("ours", "problem"),
    [
        (made([2.0, 1.0]), None),
        (made([2.0, 1.0005]), None),
        (made([2.0, 1.1]), "losses differ"),
        (made([2.0, float("nan")]), "losses differ"),
        (made([2.0]), "number of steps"),
        (made([2.0, 1.0], "acc 0.5 acc 0.75"), "accuracy 0.6000 and 0.6250"),
        (made([2.0, 1.0], "nothing"), "no accuracy"),
        (made([2.0, 1.0], resident=0), "no graph was resident"),
        (Run(1, "", "Traceback\nOSError: gone\n", {}), "exit code 1: Traceback | OSError: gone"),
    ],
)
def test_what_is_wrong(ours: Run, problem: str | None) -> None:
    verdict = judge(EXAMPLE, made([2.0, 1.0]), ours, "standin", 20)
    assert verdict.passed == (problem is None)
    assert problem is None or problem in " ".join(verdict.problems)
    json.dumps(verdict.to_dict())
    text = comparison.table([verdict], "standin")
    assert text.row_count == 1


def test_all_on_cuda_falling_back_is_wrong() -> None:
    profile = {"accelerated": 0, "fallbacks": 9, "reasons": {"no-cupy": 9}, "detours": {}}
    ours = made([2.0, 1.0], profile=profile)
    assert judge(EXAMPLE, made([2.0, 1.0]), ours, "standin", 20).passed
    (problem,) = judge(EXAMPLE, made([2.0, 1.0]), ours, "cuda", 20).problems
    assert "no call ran on a kernel" in problem and "no-cupy" in problem
    user_defined = made([2.0, 1.0], profile={**profile, "fallbacks": 0})
    assert judge(EXAMPLE, made([2.0, 1.0]), user_defined, "cuda", 20).passed


def test_steps_limit_what_is_compared() -> None:
    late = made([2.0, 1.0, 9.0])
    assert judge(EXAMPLE, made([2.0, 1.0, 0.5]), late, "standin", 2).passed
    assert not judge(EXAMPLE, made([2.0, 1.0, 0.5]), late, "standin", 3).passed


def test_sampled_examples_are_judged_by_the_end() -> None:
    sampled = dataclasses.replace(EXAMPLE, sampled=True, loss_tolerance=0.1)
    stock = made([4.0, 3.0, 2.0, 1.0])
    assert judge(sampled, stock, made([9.0, 2.0, 3.0, 1.05]), "cuda", 20).passed
    high = judge(sampled, stock, made([4.0, 3.0, 2.0, 1.5]), "cuda", 20)
    assert "losses differ by 5.0e-01" in high.problems[0]
    rising = judge(sampled, stock, made([1.0, 1.0, 1.0, 1.0]), "cuda", 20)
    assert "does not fall" in rising.problems[0]


# ---------------------------------------------------------------------- what is replaced


def test_recorder() -> None:
    stock = torch.nn.functional.dropout, torch.randperm, torch.Tensor.backward
    with Recorder() as recorder:
        weight = torch.ones(1000, requires_grad=True)
        torch.manual_seed(3)
        kept = torch.nn.Dropout(0.25)(weight)
        kept.sum().backward()
    now = torch.nn.functional.dropout, torch.randperm, torch.Tensor.backward
    assert now == stock
    kept = kept.detach()
    assert recorder.losses == [float(kept.sum())]
    assert kept.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert 0.6 < (kept > 0).float().mean() < 0.9
    assert torch.equal(weight.grad, kept)
    with Recorder(dropout=False):
        assert torch.nn.Dropout(0.25)(weight) is weight


@pytest.mark.gpu
def test_random_numbers_do_not_depend_on_the_device() -> None:
    drawn = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(5)
        with Recorder():
            x = torch.empty(7, device=device)
            torch.nn.init.normal_(x)
            drawn.append([
                x.cpu(), torch.rand(3, device=device).cpu(),
                torch.randperm(9, device=torch.device(device)).cpu(),
                torch.randint(0, 9, (4,), device=device).cpu(),
                torch.nn.functional.dropout(x, 0.5).cpu(),
            ])  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(*drawn, strict=True))


def test_cuda_is_taken_for_the_cpu() -> None:
    import dgl

    with Recorder(cuda_is_cpu=True):
        there = torch.device("cuda:0")
        g = dgl.graph(([0], [1])).to(there)
        layer = torch.nn.Linear(2, 2).to(there)
        assert g.device.type == layer.weight.device.type == "cpu"
        assert torch.ones(1).to(device=there, dtype=torch.float64).dtype == torch.float64


def test_folds_are_stratified() -> None:
    labels = [0] * 40 + [1] * 20
    folds = list(packages.StratifiedKFold(10, shuffle=True, random_state=0).split(labels, labels))
    assert len(folds) == 10
    assert np.array_equal(np.sort(np.concatenate([held for _, held in folds])), np.arange(60))
    for kept, held in folds:
        assert not set(kept) & set(held) and len(kept) + len(held) == 60
        assert (held < 40).sum() == 4


def test_scores() -> None:
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    assert packages.accuracy(scores, torch.tensor([1, 1]), "multiclass", 2) == 0.5
    ranks = packages.Evaluator("a").eval(
        {"y_pred_pos": torch.tensor([3.0, 1.0]), "y_pred_neg": torch.tensor([[1.0, 2.0]] * 2)}
    )
    assert ranks["mrr_list"].tolist() == pytest.approx([1.0, 1 / 2.5])


def test_pieces_of_small_graphs() -> None:
    edges = np.array([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])
    for nodes, inside in pieces.neighbourhoods(edges, 3, seed=0):
        assert sorted(nodes) == [0, 1, 2] and inside.shape == (2, 6)
    assert pieces.heights(np.array([-1, 0, 0, 1, 3])).tolist() == [3, 2, 0, 1, 0]
    # A root with seven children, of which one lies under two synsets and stays under the first.
    triples = np.array([[0, 0, i] for i in range(1, 8)] + [[8, 0, 1], [0, 1, 8]])
    ((parent, pointers),) = pieces.trees(triples, np.array(["~", "@"]), count=5, seed=0)
    assert parent.tolist() == [-1] + [0] * 7 and pointers.tolist() == [8] + [0] * 7
