"""Dtypes and autocast: the stock layer's result dtype, and values as near as the dtype allows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.adapters.pyg.helpers import assert_equal, edges, fused, gradients, normal

pytest.importorskip("torch_geometric")
from torch_geometric.nn import GATv2Conv

N, F = 30, 8
EDGES = edges(N, N, count=120)


def layer(dtype: torch.dtype = torch.float32, **arguments: Any) -> GATv2Conv:
    torch.manual_seed(0)
    return GATv2Conv(F, 8, heads=2, residual=True, **arguments).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_layer_in_one_dtype(dtype: torch.dtype) -> None:
    conv, x = layer(dtype), normal(N, F, dtype=dtype)
    reference = gradients(conv, x, EDGES)
    if dtype in (torch.bfloat16, torch.float16):  # stock sums in 16 bits: judge by wider numbers
        wide = gradients(copy.deepcopy(conv).float(), x.float(), EDGES)
        reference = {k: None if v is None else v.to(dtype) for k, v in wide.items()}
    with fused():
        got = gradients(conv, x, EDGES)
    assert got["out"].dtype == dtype
    assert_equal(got, reference)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    conv, x = layer(), normal(N, F)

    def run() -> dict[str, Any]:
        with torch.autocast("cpu", dtype=dtype):
            leaf = x.clone().requires_grad_()
            out = conv(leaf, EDGES)
        found = torch.autograd.grad(out, [leaf, *conv.parameters()], torch.ones_like(out))
        return {"out": out.detach(), **{str(k): g for k, g in enumerate(found)}}

    want = run()
    with fused():
        got = run()
    assert {k: g.dtype for k, g in got.items()} == {k: g.dtype for k, g in want.items()}
    tolerance = {torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    for name, value in want.items():
        assert (got[name] - value).abs().max() <= tolerance * value.abs().max(), name


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("att", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("features", [torch.float32, torch.bfloat16, torch.float64])
def test_result_dtype_of_mixed_parameters(
    features: torch.dtype, att: torch.dtype, autocast: bool
) -> None:
    conv = layer(features)
    conv.att.data = conv.att.data.to(att)
    x = normal(N, F, dtype=features)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        want = conv(x, EDGES)
        with fused():
            got = conv(x, EDGES)
    assert got.dtype == want.dtype
    assert (got - want).abs().max() <= 3e-2 * want.abs().max()


def test_pair_of_different_dtypes() -> None:
    torch.manual_seed(0)
    conv = GATv2Conv((F, F), 4)
    conv.lin_l.double()
    x = (normal(N, F, dtype=torch.float64), normal(N, F, seed=1))
    want = gradients(conv, x, EDGES)
    with fused():
        got = gradients(conv, x, EDGES)
    assert_equal(got, want)


def test_strided_inputs_and_gradients() -> None:
    conv = layer()
    wide = normal(F, 2 * N)
    x = wide.t()[::2]
    assert not x.is_contiguous()
    want = gradients(conv, x, EDGES.t().contiguous().t())
    with fused():
        assert_equal(gradients(conv, x, EDGES.t().contiguous().t()), want)
    with fused():
        conv(x, EDGES).sum().backward()  # a gradient of stride 0
    assert torch.isfinite(conv.att.grad).all()
