"""Philox: published vectors, and what the masks of attention dropout must satisfy."""

from __future__ import annotations

import math

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.runtime.random import (
    Dropout,
    draw_dropout,
    keep_scale,
    philox,
    philox_uniform,
)

CPU = torch.device("cpu")
#: Counter, key and result of philox4x32-7, published with the generator.
VECTORS = [
    ([0] * 4, (0, 0), [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
    ([0xFFFFFFFF] * 4, (0xFFFFFFFF,) * 2, [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], (0xA4093822, 0x299F31D0),
     [0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A]),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "want"), VECTORS)
def test_published_vectors(counter: list[int], key: tuple[int, int], want: list[int]) -> None:
    x, y, z, w = (torch.tensor([word]) for word in counter)
    assert [int(word) for word in philox((x, y, z, w), key)] == want


def test_counters_are_edge_head_and_offset() -> None:
    dropout = Dropout(0.5, 0x0123456789ABCDEF, 7)
    edges = torch.tensor([5, 2**33 + 1])
    got = philox_uniform(edges, 6, dropout)
    for row, edge in enumerate(edges.tolist()):
        for head in range(6):
            counter = (edge & 0xFFFFFFFF, edge >> 32, head // 4, 7)
            words = philox(tuple(torch.tensor([c]) for c in counter), (0x89ABCDEF, 0x01234567))
            assert got[row, head].item() == (int(words[head % 4]) >> 8) / 2**24


def test_uniform_and_independent() -> None:
    u = philox_uniform(torch.arange(20000), 6, Dropout(0.5, 1, 0)).double()
    assert u.min() >= 0 and u.max() < 1
    count = u.numel()
    assert abs(u.mean() - 0.5) < 4 * math.sqrt(1 / 12 / count)
    assert abs((u**2).mean() - 1 / 3) < 4 * math.sqrt(4 / 45 / count)
    columns = torch.corrcoef(torch.cat([u[1:].T, u[:-1].T]))
    assert (columns - torch.eye(12)).abs().max() < 5 / math.sqrt(20000)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_scale_of_what_is_kept(p: float) -> None:
    scale = keep_scale(torch.arange(5000), 3, Dropout(p, 3, 4))
    kept = (scale > 0).double().mean().item()
    assert abs(kept - (1 - p)) < 4 * math.sqrt(max(p * (1 - p), 1e-12) / scale.numel()) + 1e-9
    if p < 1:
        assert torch.equal(scale[scale > 0].unique(), torch.tensor([1 / (1 - p)]))


def test_torchs_seed_decides_and_each_call_draws_anew() -> None:
    torch.manual_seed(4)
    first, second = draw_dropout(0.5, CPU), draw_dropout(0.5, CPU)
    torch.manual_seed(4)
    assert draw_dropout(0.5, CPU) == first != second
    edges = torch.arange(100)
    assert not torch.equal(philox_uniform(edges, 1, first), philox_uniform(edges, 1, second))
    later = first._replace(offset=first.offset + 4)
    assert not torch.equal(philox_uniform(edges, 1, first), philox_uniform(edges, 1, later))


@pytest.mark.parametrize("p", [-0.1, 1.5, math.nan])
def test_what_is_no_probability(p: float) -> None:
    with pytest.raises(InvalidArgument, match="dropout_p"):
        draw_dropout(p, CPU)


def test_a_seed_on_the_device_takes_the_place_of_the_number() -> None:
    edges, number = torch.arange(500), 0x123456789ABCDEF
    there = Dropout(0.5, 0, 3, torch.tensor([number]))
    assert torch.equal(
        philox_uniform(edges, 3, there), philox_uniform(edges, 3, Dropout(0.5, number, 3))
    )
