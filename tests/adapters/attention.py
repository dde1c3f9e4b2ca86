"""An attention layer against its stock self: results, all gradients, dropout by the same mask."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

import gnn_backend
from gnn_backend import verify
from gnn_backend.ops.dropout import Replaying, recording

TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 8e-2, torch.float16: 6e-3}


def leaves(value: Any) -> Any:
    """The same inputs, floating ones as leaves that want a gradient."""
    if type(value) in (tuple, list):
        return type(value)(leaves(part) for part in value)
    if isinstance(value, Tensor) and value.is_floating_point() and value.layout is torch.strided:
        return value.detach().clone().requires_grad_()
    return value


def check_equals_stock(
    module: torch.nn.Module,
    host: str,
    *args: Any,
    seed: int = 3,
    constant: tuple[str, ...] = (),
    **kwargs: Any,
) -> list[Any]:
    """Run a layer fused and stock, compare everything, return the masks that were drawn.

    The fused call must run on kernels, and none may fall back. Arguments that ``constant`` names
    want no gradient.
    """
    args = tuple(leaves(a) for a in args)
    kwargs = {k: v if k in constant else leaves(v) for k, v in kwargs.items()}
    names = [f"input{k}" for k in range(len(args))]
    stock = copy.deepcopy(module)
    with (
        gnn_backend.enabled(mode="strict", hosts=host),
        gnn_backend.profile() as profile,
        recording() as masks,
    ):
        torch.manual_seed(seed)
        ours = verify.run(module, module, args, kwargs, names)
    assert profile.accelerated == 1 and dict(profile.reasons) == {}
    assert sum(profile.launches.values()) >= 1, "no kernel was launched"
    torch.manual_seed(seed)
    replaying = Replaying(masks)
    with replaying:
        theirs = verify.run(stock, stock, args, kwargs, names)
    assert not replaying.masks, "stock drops nothing where the fused code did"
    compare("output", ours.outputs, theirs.outputs)
    compare("gradient of", ours.gradients, theirs.gradients)
    return masks


def compare(what: str, got: dict[str, Any], want: dict[str, Any]) -> None:
    """Same names, shapes and dtypes, and differences within the dtype's tolerance."""
    assert list(got) == list(want), f"{what}: {list(got)}, stock {list(want)}"
    least = verify.least_scale(want)
    for name, expected in want.items():
        value = got[name]
        if expected is None or value is None:
            other = value if expected is None else expected
            assert other is None or not other.any(), f"{what} {name}: on one side only"
            continue
        assert (value.shape, value.dtype) == (expected.shape, expected.dtype), f"{what} {name}"
        difference, scale = verify.difference_and_scale(expected, value)
        if difference.numel():
            error = difference.max().item() / max(scale, least, 1e-30)
            assert error <= TOLERANCE[expected.dtype], f"{what} {name}: {error:.2e}"
