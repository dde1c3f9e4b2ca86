"""Small DGL graphs of every kind, and checks of what ran."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import dgl
import torch

import gnn_backend
from gnn_backend.profile import Profile
from tests.adapters.pyg.helpers import edges

KINDS = ("homogeneous", "batched", "square-slice", "slice", "block")


def make_graph(kind: str, *, covered: bool = False, idtype: torch.dtype = torch.int64) -> Any:
    """A graph with duplicate edges, loops and isolated nodes; 14 sources, 14 or 9 destinations.

    ``covered`` gives every destination an in-edge; otherwise the last one has none.
    """
    num_src, num_dst = 14, 9 if kind in ("slice", "block") else 14
    edge_index = edges(num_src, num_dst)
    if covered:
        every = torch.arange(num_dst)
        edge_index = torch.cat([edge_index, torch.stack([(every * 3) % num_src, every])], 1)
    pairs = tuple(edge_index.to(idtype))
    if kind == "homogeneous":
        return dgl.graph(pairs, num_nodes=num_src)
    if kind == "batched":
        loops = tuple(torch.arange(5, dtype=idtype).repeat(2, 1))
        return dgl.batch([dgl.graph(pairs, num_nodes=num_src), dgl.graph(loops, num_nodes=5)])
    if kind == "block":
        return dgl.create_block(pairs, num_src_nodes=num_src, num_dst_nodes=num_dst)
    end = "user" if kind == "square-slice" else "item"
    other = (torch.tensor([0, 1], dtype=idtype), torch.tensor([1, 1], dtype=idtype))
    counts = {"user": num_src, "item": 9}
    relations = {("user", "sees", end): pairs, ("item", "knows", "user"): other}
    return dgl.heterograph(relations, counts)["sees"]


@contextlib.contextmanager
def fused(calls: int = 1) -> Iterator[Profile]:
    """Enable DGL; inside, exactly ``calls`` calls must run on kernels and none may fall back."""
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        yield profile
    assert dict(profile.reasons) == {}
    assert profile.accelerated == calls
    assert sum(profile.launches.values()) >= calls, "no kernel was launched"


@contextlib.contextmanager
def falls_back(reason: str) -> Iterator[Profile]:
    """Enable DGL; inside, every call must run the stock code for ``reason``."""
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        yield profile
    assert set(profile.reasons) == {reason}
    assert profile.accelerated == 0
    assert not profile.launches
