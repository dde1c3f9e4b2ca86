"""The yardstick kernel sums what it says it sums; run on the emulator and, where there, a GPU."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch

from gnn_backend.bench import yardstick
from gnn_backend.config import override
from gnn_backend.datasets import GraphData, uniform
from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.profile import profile


def _check(device: str, width: int, dtype: torch.dtype, tables: int) -> None:
    edges = uniform(9, 6, 200, seed=1)
    edges[1, :100] = 2  # one long row of at least 100 edges, cut into pieces of 64
    edges[1, edges[1] == 5] = 4  # and one without edges
    graph = Graph.from_edge_index(edges.to(device), 9, 6)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(9, width, generator=generator).to(device, dtype) for _ in range(tables)]
    with profile() as record:
        out, partial = yardstick.gather_sum(graph, 64, tuple(rows))
    assert sum(record.launches.values()) == 1
    total = sum(row.double() for row in rows)
    want = torch.zeros(6, width, dtype=torch.float64, device=device)
    want.index_add_(0, edges[1].to(device), total[edges[0].to(device)])
    splits = graph.splits("dst", 64)
    assert splits.heavy_rows.tolist() == [2]
    got = out.double()
    got[2] = partial.double().sum(0)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert not got[5].any()


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize(
    ("width", "dtype"),
    [
        (16, torch.float32),
        (128, torch.float32),
        (512, torch.float32),
        (16, torch.bfloat16),
        (128, torch.bfloat16),
        (256, torch.float16),
    ],
)
def test_gather_sum(width: int, dtype: torch.dtype, tables: int) -> None:
    with override(cpu_target="emulator"):
        _check("cpu", width, dtype, tables)


@pytest.mark.gpu
def test_gather_sum_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    _check("cuda", 128, torch.float32, 2)


def test_other_widths_are_refused() -> None:
    assert not yardstick.supports(100, torch.float32)
    with pytest.raises(InvalidArgument, match="no yardstick"):
        yardstick.unit(100, torch.float32)


@pytest.mark.parametrize(("theirs", "void"), [(1.0, False), (1.2, True)])
def test_check_voids_a_different_yardstick(tmp_path: Path, theirs: float, void: bool) -> None:
    file = tmp_path / "limit.py"
    file.write_text(
        textwrap.dedent(
            f"""
            def limits(src, dst, num_src, num_dst, width, dtypes):
                assert src.shape == dst.shape and (num_src, num_dst, width) == (4, 4, 128)
                return {{dtypes[0]: {{"g1": {theirs}, "g2": 2.0}}}}
            """
        )
    )
    data = GraphData("tiny", uniform(4, 4, 8), 4)
    measured = {"g1_ms": 1.02, "g2_ms": 2.02}
    found = yardstick.check(file, measured, data, 128, "float32")
    assert found["void"] is void
    assert found["difference"]["g1"] == pytest.approx(1.02 / theirs - 1, abs=1e-4)
