"""A process may use any number of translation units."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.emulator.support import launch

SOURCE = """
#include "common.cuh"
struct Args {{ long long* out; }};
GNNB_ENTRY(unit, Args, 1024, args.out[threadIdx.x] = threadIdx.x + {number};)
"""


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_a_unit_keeps_no_stacks() -> None:
    """Each stack takes two of the mappings that a process may have."""
    out = torch.zeros(1024, dtype=torch.int64)
    counts = []
    for number in range(3):
        launch(SOURCE.format(number=number), "unit", 1024, out)
        assert torch.equal(out, torch.arange(1024) + number)
        counts.append(mappings())
    assert counts[2] - counts[0] < 100
