"""Small graphs, and runs of a layer with all gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

import gnn_backend
from gnn_backend.profile import Profile

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def edges(num_src: int, num_dst: int, count: int = 60, seed: int = 0) -> Tensor:
    """Random edges with duplicates, self-loops and, at the last destination, no in-edge."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(num_src, (count,), generator=generator)
    dst = torch.randint(max(1, num_dst - 1), (count,), generator=generator)
    loops = torch.arange(min(num_src, num_dst - 1, 4))
    src = torch.cat([src, src[:5], loops, loops[:2]])
    dst = torch.cat([dst, dst[:5], loops, loops[:2]])
    return torch.stack([src, dst])[:, torch.randperm(src.numel(), generator=generator)]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def gradients(module: torch.nn.Module, *inputs: Any, seed: int = 3) -> dict[str, Tensor | None]:
    """Output and every gradient of a layer of any host, with seeded dropout and cotangent.

    Floating-point inputs, in tuples too, are differentiated; graphs and edges are passed on.
    """
    leaves: dict[str, Tensor] = {}

    def leaf(name: str, value: Any) -> Any:
        if type(value) is tuple:
            return tuple(leaf(f"{name}.{k}", part) for k, part in enumerate(value))
        if not isinstance(value, Tensor) or value.is_sparse or not value.is_floating_point():
            return value
        leaves[name] = value.detach().clone().requires_grad_()
        return leaves[name]

    arguments = [leaf(f"input{k}", value) for k, value in enumerate(inputs)]
    torch.manual_seed(seed)
    out = module(*arguments)
    wanted = leaves | dict(module.named_parameters())
    found = torch.autograd.grad(
        out,
        list(wanted.values()),
        normal(*out.shape, seed=7, dtype=out.dtype),
        allow_unused=True,
    )
    return {"out": out.detach(), **dict(zip(wanted, found, strict=True))}


def assert_equal(got: Mapping[str, Tensor | None], want: Mapping[str, Tensor | None]) -> None:
    """Same names, dtypes and shapes; max|difference| within the dtype's share of max|want|."""
    assert list(got) == list(want)
    for name, expected in want.items():
        value = got[name]
        if expected is None or value is None:
            assert expected is value, f"{name}: a gradient on one side only"
            continue
        assert (value.shape, value.dtype) == (expected.shape, expected.dtype), name
        if expected.numel():
            error = (value.double() - expected.double()).abs().max()
            limit = TOLERANCE[expected.dtype] * expected.double().abs().max()
            assert bool(error <= limit), f"{name}: off by {error:.3g}, allowed {limit:.3g}"


@contextlib.contextmanager
def fused(calls: int = 1) -> Iterator[Profile]:
    """Enable PyG; inside, exactly ``calls`` calls must run on kernels and none may fall back."""
    with gnn_backend.enabled(hosts="pyg"), gnn_backend.profile() as profile:
        yield profile
    assert dict(profile.reasons) == {}
    assert profile.accelerated == calls
    assert sum(profile.launches.values()) >= calls, "no kernel was launched"


@contextlib.contextmanager
def falls_back(reason: str) -> Iterator[Profile]:
    """Enable PyG; inside, every call must run the stock code for ``reason``."""
    with gnn_backend.enabled(hosts="pyg"), gnn_backend.profile() as profile:
        yield profile
    assert set(profile.reasons) == {reason}
    assert profile.accelerated == 0
    assert not profile.launches
