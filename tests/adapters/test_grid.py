"""Every attention layer over its arguments, on kernels: output and all gradients as stock.

On the CPU's kernels every pair of two arguments' values, on the device's, run on the host, every
value of every argument. On a GPU: ``tests/gpu/test_layer_grid.py``.
"""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import pytest

from gnn_backend import config
from tests.adapters.grid import COVERING, HOSTS, PAIRWISE, Case, covering

pytestmark = [pytest.mark.filterwarnings("ignore:Sparse"), pytest.mark.sampled(9)]


def rows(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def checked(case: Case) -> None:
    if reason := case.missing():
        pytest.skip(reason)
    case.check()


@rows(PAIRWISE)
def test_equals_stock(case: Case) -> None:
    checked(case)


@rows(COVERING)
def test_equals_stock_on_the_emulator(case: Case) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels with")
    with config.override(cpu_target="emulator"):
        checked(case)


def test_every_layer_has_many_cases() -> None:
    counts = Counter((case.host, case.layer) for case in PAIRWISE)
    for host, layers in HOSTS.items():
        for layer in layers.CHOICES:
            assert counts[host, layer] >= 9


def test_every_value_is_covered() -> None:
    for host, layers in HOSTS.items():
        for layer, choices in layers.CHOICES.items():
            for cases in (PAIRWISE, COVERING):
                used = [c.options for c in cases if (c.host, c.layer) == (host, layer)]
                for name, values in choices.items():
                    assert {str(v) for v in values} == {str(c[name]) for c in used}, (layer, name)


def test_every_pair_is_covered() -> None:
    choices = {"a": [0, 1, 2], "b": [0, 1, 2], "c": [0, 1], "d": [0, 1]}
    chosen = covering.pairwise(choices, lambda c: c["a"] != c["b"])
    for one, values in choices.items():
        for other, others in choices.items():
            if one < other:
                found = {(c[one], c[other]) for c in chosen}
                wanted = {(v, w) for v in values for w in others}
                assert found == {(v, w) for v, w in wanted if (one, other) != ("a", "b") or v != w}
    assert len(chosen) < 18
