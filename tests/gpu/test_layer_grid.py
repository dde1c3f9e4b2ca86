"""Every attention layer over its arguments on CUDA: output and all gradients as stock.

The reference of PyG's layers is stock on CUDA, that of DGL's stock on the CPU.
"""

from __future__ import annotations

from tests.adapters.grid import PAIRWISE, Case
from tests.gpu import support
from tests.gpu.support import table

pytestmark = support.MARKS


@table("case", PAIRWISE)
def test_equals_stock(case: Case) -> None:
    if reason := case.missing():
        support.skip(reason)
    case.check(support.DEVICE)
