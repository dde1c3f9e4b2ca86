"""Sums over tiles in the emulator: values and gradients against the sums over rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnn_backend import config
from gnn_backend.graph import Graph
from gnn_backend.profile import profile
from gnn_backend.runtime import block_sparse
from gnn_backend.runtime.sparse import tile_sums
from tests.runtime.block_cases import GRAPHS
from tests.runtime.sparse.sums import Sum, check_sum, close, run

pytestmark = pytest.mark.usefixtures("tf32", "unoptimised")


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("values", [0, 1, 3])
def test_graphs(name: str, dtype: torch.dtype, values: int) -> None:
    check_sum(Sum(GRAPHS[name], dtype, 3, 16, values))


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("values", [0, 2])
def test_split_windows_are_merged(
    reduce: str, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnn_backend.graph.block_sparse.CHUNKS", (1,))
    case = Sum(GRAPHS["hubs"], torch.bfloat16, 2, 64, values, reduce)
    with profile() as record:
        check_sum(case)
    names = {name for _, name in record.launches}
    assert "block_merge_bf16_sum" in names and any(n.startswith("block_sum_") for n in names)


@pytest.mark.parametrize(("reduce", "values"), [("mean", 0), ("sum", 2)])
def test_rows_in_another_order(reduce: str, values: int) -> None:
    """Tiles of a reordered graph; the caller's rows and edges stay where they are."""
    case = Sum(GRAPHS["hubs"], torch.bfloat16, 2, 64, values, reduce)
    graph = Graph.from_edge_index(*case.edges).reorder("degree")
    close(run(case, "tiles", graph=graph), run(case, "rows"), case.dtype)


def test_a_nan_reaches_its_neighbours_alone() -> None:
    case = Sum(GRAPHS["block model"], torch.bfloat16, 1, 64)

    def spoil(x: Tensor) -> None:
        x[3, 0, 2] = torch.nan
        x[20, 0, 7] = torch.inf

    tiles, rows = (run(case, path, spoil) for path in ("tiles", "rows"))
    close(tiles, rows, case.dtype)
    assert rows[0].isnan().any() and rows[0].isinf().any()


def test_either_switch_allows_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's older switch cannot be read once the newer one was used."""
    matmul = torch.backends.cuda.matmul
    assert block_sparse.allows_tf32()
    matmul.allow_tf32 = False
    assert not block_sparse.allows_tf32()

    class Newer:
        fp32_precision = "tf32"

        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("mix of the legacy and new APIs")

    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.cuda, "matmul", Newer())
        assert block_sparse.allows_tf32()


def test_what_has_no_kernel() -> None:
    assert tile_sums.cannot(torch.bfloat16, 2, 24, 0) is None  # 48 columns in one piece
    assert "16 to 64" in (tile_sums.cannot(torch.bfloat16, 2, 24, 2) or "")
    assert "a weight a column" in (tile_sums.cannot(torch.bfloat16, 2, 16, 32) or "")
    assert "float64" in (tile_sums.cannot(torch.float64, 1, 64, 0) or "")
    torch.backends.cuda.matmul.allow_tf32 = False
    assert "tf32" in (tile_sums.cannot(torch.float32, 1, 64, 0) or "")
    x = torch.randn(4, 40)
    graph = Graph.from_edge_index(torch.tensor([[0, 1], [2, 3]]), 4, 4)
    from gnn_backend.ops import aggregate

    with config.override(aggregation_path="tiles"), profile() as record:
        aggregate(graph, x, "sum")
    (choice,) = record.choices
    assert "rows" in choice and "not tiles: float32" in choice
