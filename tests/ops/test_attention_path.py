"""Rows or tiles: both give the operator's result, and each pass takes the one that is chosen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnn_backend import config, datasets
from gnn_backend.graph import Graph
from gnn_backend.ops.attention import dot_attention
from gnn_backend.profile import profile
from gnn_backend.runtime import block_choice


@pytest.fixture(autouse=True)
def on_the_device(unoptimised: None) -> None:
    """Run the operators on the device engine in the emulator."""


def operands(dtype: torch.dtype = torch.bfloat16) -> tuple[Graph, list[Tensor], Tensor]:
    """A small block model; query, key and value that want gradients, and a bias."""
    edges = datasets.block_model(40, 20, 0.5)
    generator = torch.Generator().manual_seed(0)
    tables = [
        torch.randn(40, 2, 16, generator=generator).to(dtype).requires_grad_() for _ in range(3)
    ]
    bias = torch.randn(edges.shape[1], 2, generator=generator).to(dtype).requires_grad_()
    return Graph.from_edge_index(edges, 40, 40), tables, bias


def run(path: str, biased: bool = False, dtype: torch.dtype = torch.bfloat16):
    """Results, gradients and the names of the kernels that ran."""
    graph, tables, bias = operands(dtype)
    leaves = [*tables, bias] if biased else tables
    with config.override(attention_path=path), profile() as record:
        out = dot_attention(graph, *tables, edge_bias=bias if biased else None)
        grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
    return [out.detach(), *grads], {entry for _, entry in record.launches}


@pytest.mark.parametrize("biased", [False, True])
def test_both_give_the_same(biased: bool) -> None:
    rows, by_rows = run("rows", biased)
    tiles, by_tiles = run("tiles", biased)
    assert not any("block" in name for name in by_rows)
    assert by_tiles and all("block" in name for name in by_tiles)
    for ours, theirs in zip(tiles, rows, strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=2e-2, atol=2e-2)


def test_rows_where_there_is_no_kernel() -> None:
    assert not torch.backends.cuda.matmul.allow_tf32
    _, names = run("tiles", dtype=torch.float32)
    assert names and not any("block" in name for name in names)


@pytest.mark.parametrize("tiled", ["dst", "src"])
def test_each_pass_chooses_by_itself(tiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        block_choice, "prefers_tiles", lambda graph, direction, *_: direction == tiled
    )
    mixed, names = run("auto")
    rows, _ = run("rows")
    assert any("block" in name for name in names) and any("dot_" in name for name in names)
    for ours, theirs in zip(mixed, rows, strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=2e-2, atol=2e-2)


def test_a_biased_call_goes_back_the_way_it_came() -> None:
    graph, tables, bias = operands()
    with config.override(attention_path="tiles"):
        out = dot_attention(graph, *tables, edge_bias=bias)
    with config.override(attention_path="rows"), profile() as record:
        torch.autograd.grad(out, [*tables, bias], torch.ones_like(out))
    assert record.launches and all("block" in name for _, name in record.launches)


def test_a_biased_call_takes_rows_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_choice, "prefers_tiles", lambda *_: True)
    _, names = run("auto", biased=True)
    assert names and not any("block" in name for name in names)


def test_small_graphs_take_rows() -> None:
    _, names = run("auto")
    assert names and not any("block" in name for name in names)


def test_dropout_takes_rows() -> None:
    graph, tables, _ = operands()
    with config.override(attention_path="tiles"), profile() as record:
        dot_attention(graph, *tables, dropout_p=0.5)
    assert record.launches and not any("block" in name for _, name in record.launches)


def test_what_is_chosen_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, tables, bias = operands()

    def said(**options: Tensor) -> str:
        with profile() as record:
            dot_attention(graph, *tables, **options)
        (text,) = record.choices
        return text

    assert said().startswith(
        "dot: rows, neighbour-parallel, at most 32 neighbours a task (from the number of edges)"
    )
    assert said().endswith("not tiles, fewer than 100,000 edges")
    monkeypatch.setattr(block_choice, "MIN_EDGES", 1)
    assert "tiles" in said() and "edges in a tile, predicted" in said()
    assert said(edge_bias=bias).endswith("not tiles, edges have a bias")
    with config.override(attention_path="tiles"):
        assert said() == "dot: tiles, attention_path is 'tiles'"
    with config.override(cpu_target="numba"):
        assert said().startswith("dot: Numba, ")
