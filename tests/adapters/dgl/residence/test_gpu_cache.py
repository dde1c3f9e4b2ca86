"""Rows of a table on the CPU that are kept on the device, and what is fetched when."""

from __future__ import annotations

from collections.abc import Iterator

import dgl
import pytest
import torch
from dgl.cuda import GPUCache
from dgl.dataloading import DataLoader, NeighborSampler

import gnn_backend
from tests.adapters.dgl.residence.places import IDTYPES, Place, homogeneous

TABLE = torch.arange(40.0).view(10, 4)


def fetch(cache: GPUCache, keys: torch.Tensor) -> list[int]:
    """Read rows through the cache as DGL's loader does; returns the keys that were missing."""
    values, places, missing = cache.query(keys)
    assert (values.device, places.dtype, missing.dtype) == (keys.device, keys.dtype, keys.dtype)
    rows = TABLE.to(keys.device)[missing.long()]
    cache.replace(missing, rows)
    values[places.long()] = rows
    assert torch.equal(values.cpu(), TABLE[keys.long().cpu()])
    return missing.tolist()


@pytest.mark.parametrize("idtype", IDTYPES)
def test_rows_used_longest_ago_go_first(place: Place, idtype: torch.dtype) -> None:
    def keys(*numbers: int) -> torch.Tensor:
        return torch.tensor(numbers, dtype=idtype, device=place.device)

    cache = GPUCache(4, 4, idtype)
    assert fetch(cache, keys(3, 1)) == [3, 1]
    assert fetch(cache, keys(1, 3, 7)) == [7]
    assert fetch(cache, keys(7, 3)) == []
    assert fetch(cache, keys(5)) == [5]
    assert fetch(cache, keys(9)) == [9]  # in the place of 1
    assert fetch(cache, keys(3, 7, 5, 9)) == []
    assert fetch(cache, keys(1, 1)) == [1, 1]
    assert fetch(cache, keys()) == []
    assert (cache.total_miss, cache.total_queries) == (7, 15)
    assert cache.miss_rate == pytest.approx(7 / 15)


def test_rows_are_replaced(place: Place) -> None:
    cache = GPUCache(3, 2)
    keys = torch.tensor([4, 2], device=place.device)
    for value in (1.0, 2.0):
        cache.replace(keys, torch.full((2, 2), value, device=place.device))
        values, _, missing = cache.query(keys)
        assert missing.numel() == 0 and values.tolist() == [[value] * 2] * 2
    cache.replace(torch.arange(9, device=place.device), torch.ones(9, 2, device=place.device))
    assert cache.query(torch.arange(9, device=place.device))[2].numel() == 6  # three are kept


@pytest.fixture
def on() -> Iterator[None]:
    with gnn_backend.enabled(hosts="dgl"):
        yield


@pytest.mark.gpu
def test_features_through_the_cache(on: None) -> None:
    """Pinned features that a loader fetches to the device, some of them again and again."""
    g = homogeneous(torch.int64, 60, 500)
    device = torch.device("cuda", torch.cuda.current_device())
    sampler = NeighborSampler([3], prefetch_node_feats=["x"])
    seeds = torch.arange(0, 60, 2, device=device)
    loader = DataLoader(
        g, seeds, sampler, device=device, batch_size=8, use_uva=True, gpu_cache={"node": {"x": 40}}
    )
    try:
        for _ in range(2):
            for inputs, _, blocks in loader:
                assert torch.equal(blocks[0].srcdata["x"].cpu(), g.ndata["x"][inputs.cpu()])
        ((cache, _),) = g._gpu_caches["node"].values()
        assert 0 < cache.miss_rate < 1
    finally:
        g.unpin_memory_()


def test_stock_has_none_of_it() -> None:
    with gnn_backend.disabled(), pytest.raises((NameError, dgl.DGLError)):
        GPUCache(4, 4)
