"""Dropout's factors inside Numba are those of the oracle, edge for edge and bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numba import cfunc, types

from gnn_backend.runtime.cpu_memory import field, store
from gnn_backend.runtime.cpu_random import philox_keep
from gnn_backend.runtime.cpu_vector import lanes, zeros
from gnn_backend.runtime.random import Dropout, keep_scale


def kernel(real, ids, first, group, dropout, result, count):
    """Factors of ``count`` edges, four rows of them; ``ids``: numbers, or None from ``first``."""
    scale, stride = dropout.scale, result.shape[1]
    edge_id = None if ids is None else {"int32": types.int32, "int64": types.int64}[str(ids.dtype)]

    @cfunc(types.void(types.int64))
    def factors(address):
        edges, target = field(address, 0, edge_id), field(address, 1, real)
        start, counted = field(address, 2, 0), field(address, 3, 0)
        counters = (field(address, 4, 0), field(address, 5, 0), field(address, 6, 0))
        like = zeros(real, 1)
        for k in range(0, counted, lanes(like)):
            four = philox_keep(
                like, edges, start, k, counted, counters, field(address, 7, 0), scale
            )
            store(target, k, four[0], None)
            store(target, stride + k, four[1], None)
            store(target, 2 * stride + k, four[2], None)
            store(target, 3 * stride + k, four[3], None)

    seed = dropout.seed - (1 << 64) if dropout.seed >> 63 else dropout.seed
    threshold = math.ceil(float(np.float32(dropout.p)) * (1 << 24))
    source = 0 if ids is None else ids.ctypes.data
    numbers = source, result.ctypes.data, first, count, group, dropout.offset & 0xFFFFFFFF
    block = np.array([*numbers, seed, threshold], np.int64)
    factors.ctypes(block.ctypes.data)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.75, 1.0])
@pytest.mark.parametrize("source", ["position", "int32", "int64"])
def test_factors_are_those_of_the_oracle(source, p):
    dropout = Dropout(p, 0xFEDCBA9876543210, (7 << 32) + 5)
    first, count, group = (1 << 32) - 24, 64, 2  # past 32 bits on the way
    edges = np.arange(first, first + count)
    if source == "int32":
        edges = np.random.default_rng(0).permutation(count)
    ids = None if source == "position" else edges.astype(source)
    result = np.empty((4, count), np.float32)
    kernel(types.float32, ids, first, group, dropout, result, count)
    expected = keep_scale(torch.from_numpy(edges), 12, dropout)[:, 8:].T
    np.testing.assert_array_equal(result, expected.numpy().astype(np.float32))
    assert (result == 0).any() == (p > 0)


def test_ids_past_the_last_are_not_read():
    """They lie outside of memory that is ours; the numbers drawn for them are those of edge 0."""
    dropout = Dropout(0.5, 3, 0)
    result, ids = np.empty((4, 48)), np.full(48, 1 << 40)
    kernel(types.float64, ids, 0, 0, dropout, result, 45)
    edges = torch.from_numpy(np.where(np.arange(48) < 45, ids, 0))
    expected = keep_scale(edges, 4, dropout).double().T
    np.testing.assert_array_equal(result, expected.numpy())
