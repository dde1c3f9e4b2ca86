"""SIMD vectors in Numba: exponential, reductions, masks and selects against NumPy."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch
from numba import types

from gnn_backend.runtime.cpu_memory import field, get, load, put, shift, store
from gnn_backend.runtime.cpu_vector import (
    above_or_nan,
    active,
    exponential,
    first_lanes,
    greatest,
    halves,
    lanes,
    logarithm,
    single,
    to_bfloat,
    to_half,
    total,
    totals,
    where,
    zeros,
)

pytestmark = pytest.mark.sampled(2)

OPTIONS = {"fastmath": {"contract", "nsz", "arcp", "afn"}, "error_model": "numpy"}


def compile_kernel(body, dtype):
    """Compile ``body(pointers...)`` with the given element type; called with arrays."""
    real = getattr(types, dtype)
    kernel = numba.njit(**OPTIONS)(body(real))

    def call(*arrays):
        block = np.array([a.ctypes.data for a in arrays], np.int64)
        return kernel(block.ctypes.data, arrays[0].size)

    return call


def exp_kernel(real):
    def kernel(address, n):
        source, target = field(address, 0, real), field(address, 1, real)
        like = zeros(real, 1)
        for k in range(0, n, lanes(like)):
            mask = first_lanes(n - k, like)
            store(target, k, exponential(load(source, k, like, mask)), mask)

    return kernel


def _exp(values):
    result = np.full(values.size + 3, 7, values.dtype)
    compile_kernel(exp_kernel, str(values.dtype))(values, result)
    assert (result[values.size :] == 7).all()  # the mask keeps the rest
    return result[: values.size]


def test_exponential_of_float32_is_within_two_units_in_the_last_place():
    x = np.concatenate([np.linspace(-103, 88.7, 200_001), np.linspace(-1, 1, 20_001)]).astype(
        np.float32
    )
    expected = np.exp(x.astype(np.float64))
    unit = np.spacing(expected.astype(np.float32)).astype(np.float64)
    assert (np.abs(_exp(x) - expected) <= 2 * unit).all()


def test_exponential_of_float64_is_the_library_function():
    x = np.linspace(-700, 700, 10_001)
    np.testing.assert_allclose(_exp(x), np.exp(x), rtol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exponential_of_special_values(dtype):
    x = np.array([-np.inf, np.inf, np.nan, 0.0, -0.0, -1e30, 1e30, -800], dtype)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(_exp(x), np.exp(x))


def sums_kernel(real):
    def kernel(address, n):
        source, target = field(address, 0, real), field(address, 1, real)
        wide, narrow = zeros(real, 4), zeros(real, 1)
        size = lanes(wide)
        a, b = load(source, 0, wide, None), load(source, size, wide, None)
        c, d = load(source, 2 * size, wide, None), load(source, 3 * size, wide, None)
        store(target, 0, totals(a, b, c, d), None)
        put(target, 4, total(a))
        put(target, 5, total(b))
        put(target, 6, total(c))
        put(target, 7, total(d))
        mask = first_lanes(3, narrow)
        put(target, 8, total(active(load(source, 0, narrow, None), mask)))
        low, high = halves(load(source, 0, narrow, None))
        store(target, 16, high, None)
        store(target, 48, low, None)
        put(target, 9, greatest(b))
        return lanes(narrow)

    return kernel


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reductions(dtype):
    values = np.random.default_rng(0).standard_normal(4 * 64).astype(dtype)
    result = np.zeros(80, dtype)
    width = compile_kernel(sums_kernel, dtype)(values, result)
    expected = values[: 16 * width].reshape(4, 4 * width).sum(1, dtype=np.float64)
    np.testing.assert_allclose(result[:4], expected, rtol=1e-5)
    np.testing.assert_array_equal(result[:4], result[4:8])  # the same order, bit for bit
    np.testing.assert_allclose(result[8], values[:3].sum(), rtol=1e-6)
    assert result[9] == values[4 * width : 8 * width].max()
    half = width // 2
    np.testing.assert_array_equal(result[16 : 16 + half], values[half:width])
    np.testing.assert_array_equal(result[48 : 48 + half], values[:half])


def select_kernel(real):
    def kernel(address, n):
        source, target = field(address, 0, real), field(address, 1, real)
        like = zeros(real, 2)
        x = load(source, 0, like, first_lanes(n, like))
        half = x * 0.5
        store(target, 0, where(x > 0.0, x + 1.0, half - x), first_lanes(n, like))
        store(target, 16, where(x < 2.0, 3.0, get(source, 0)), first_lanes(n, like))

    return kernel


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arithmetic_comparison_and_select(dtype):
    x = np.array([4.0, -1.0, 0.0, np.nan, 2.0], dtype)
    result = np.zeros(32, dtype)
    compile_kernel(select_kernel, dtype)(x, result)
    np.testing.assert_array_equal(result[:5], np.where(x > 0, x + 1, x * 0.5 - x))
    np.testing.assert_array_equal(result[16:21], np.where(x < 2, 3, x[0]))


def largest_kernel(real):
    def kernel(address, n):
        source, target = field(address, 0, real), field(address, 1, real)
        like = single(real)
        best = like - np.inf
        for k in range(n):
            value = load(source, k, like, None)
            best = where(above_or_nan(value, best), value, best)
            store(target, k, best, None)
            store(target, n + k, where(value == best, 1.0, like), None)
            store(target, 2 * n + k, logarithm(value / (like + 2.0)), None)

    return kernel


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_running_maximum_keeps_the_first_nan(dtype):
    x = np.array([1.0, 0.5, 3.0, np.nan, 7.0, np.inf], dtype)
    result = np.zeros(18, dtype)
    compile_kernel(largest_kernel, dtype)(x, result)
    np.testing.assert_array_equal(result[:6], [1, 1, 3, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(result[6:12], [1, 0, 1, 0, 0, 0])
    np.testing.assert_allclose(result[12:], np.log(x / 2), rtol=1e-6)


def rounding_kernel(real):
    def kernel(address, n):
        source, target = field(address, 0, real), field(address, 1, real)
        like = zeros(real, 1)
        for k in range(0, n, lanes(like)):
            mask = first_lanes(n - k, like)
            x = load(source, k, like, mask)
            store(target, k, to_half(x), mask)
            store(target, n + k, to_bfloat(x), mask)

    return kernel


def test_rounding_to_16_bits_is_torchs():
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 65504.0, 65520.0, 1e-7])
    x = torch.cat([special, torch.randn(3000), torch.randn(3000) * 1e5, torch.randn(999) * 1e-6])
    x = torch.cat([x, torch.arange(256, 512) + 0.5, torch.arange(2048, 4096).float()])  # ties
    result = np.zeros(2 * x.numel(), np.float32)
    compile_kernel(rounding_kernel, "float32")(x.numpy(), result)
    np.testing.assert_array_equal(result[: x.numel()], x.half().float().numpy())
    np.testing.assert_array_equal(result[x.numel() :], x.bfloat16().float().numpy())


def absent_kernel(real):
    def kernel(address, n):
        target = field(address, 0, real)
        absent = shift(field(address, 1, None), 5)
        like = zeros(real, 1)
        store(absent, 0, like + 1.0, None)
        put(absent, 3, 1.0)
        store(target, 0, load(absent, 0, like, None), first_lanes(4, like))

    return kernel


def test_a_pointer_that_is_none_reads_zero_and_writes_nothing():
    result = np.full(8, 7, np.float32)
    compile_kernel(absent_kernel, "float32")(result, result)
    np.testing.assert_array_equal(result, [0, 0, 0, 0, 7, 7, 7, 7])
