"""An attention layer against its stock self: results, all gradients, dropout by the same mask."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import gnn_backend
from gnn_backend import draws, verify
from gnn_backend.judging import BRANCHED, differing, errors
from gnn_backend.ops.dropout import Replaying, recording

if TYPE_CHECKING:
    from tests.adapters.grid.sample import Reference

TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 8e-2, torch.float16: 6e-3}


def leaves(value: Any, dtype: torch.dtype | None = None) -> Any:
    """The same inputs, floating ones as leaves that want a gradient, in `dtype` if it is given."""
    if type(value) in (tuple, list):
        return type(value)(leaves(part, dtype) for part in value)
    if isinstance(value, Tensor) and value.is_floating_point() and value.layout is torch.strided:
        return value.detach().to(dtype or value.dtype, copy=True).requires_grad_()
    return value


def check_equals_stock(
    module: torch.nn.Module,
    host: str,
    *args: Any,
    seed: int = 3,
    reference: Reference | None = None,
    constant: tuple[str, ...] = (),
    **kwargs: Any,
) -> list[Any]:
    """Run a layer fused and stock, compare everything, return the masks that were drawn.

    The fused call must run on kernels, and none may fall back. Stock is a copy of the layer on
    the same inputs, or the ``reference``, which may be on the CPU: both then draw there.
    Arguments that ``constant`` names want no gradient.
    """
    stock = (copy.deepcopy(module), args, kwargs)
    if reference is not None:
        stock = (reference.module, reference.args, reference.kwargs)
    wide = copy.deepcopy(stock[0]).double()  # some keep what they computed, which has no copy
    with (
        gnn_backend.enabled(mode="strict", hosts=host),
        gnn_backend.profile() as profile,
        draws.on_the_cpu() if reference is not None else contextlib.nullcontext(),
        recording() as masks,
    ):
        ours = _run(module, args, kwargs, seed, constant=constant)
        number = torch.rand(1)
    assert profile.accelerated == 1 and dict(profile.reasons) == {}
    assert sum(profile.launches.values()) >= 1, "no kernel was launched"
    replaying = Replaying(masks)
    with replaying:
        theirs = _run(*stock, seed, constant=constant)
    if not masks:
        assert torch.equal(number, torch.rand(1)), "the random state is not as stock leaves it"
    assert not replaying.masks, "stock drops nothing where the fused code did"
    _check_forms(ours.outputs, theirs.outputs)
    _check_forms(ours.gradients, theirs.gradients)
    _check_values(
        ours, theirs, lambda: _exact((wide, *stock[1:]), masks, seed, constant),
        apart=reference is not None,
    )  # fmt: skip
    return masks


def _run(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seed: int,
    dtype: torch.dtype | None = None,
    constant: tuple[str, ...] = (),
) -> verify.Run:
    args = tuple(leaves(a, dtype) for a in args)
    kwargs = {
        k: leaves(v, dtype).detach() if k in constant else leaves(v, dtype)
        for k, v in kwargs.items()
    }
    torch.manual_seed(seed)
    return verify.run(module, module, args, kwargs, [f"input{k}" for k in range(len(args))])


def _exact(
    stock: tuple[Any, Any, Any], masks: list[Any], seed: int, constant: tuple[str, ...]
) -> verify.Run:
    """Stock in float64 with the same dropout: torch draws the same in every dtype."""
    with Replaying(masks):
        return _run(*stock, seed, torch.float64, constant)


def _check_forms(got: dict[str, Any], want: dict[str, Any]) -> None:
    """Same names, shapes and dtypes; a gradient that one side lacks is zero on the other."""
    assert list(got) == list(want), f"{list(got)}, stock {list(want)}"
    for name, expected in want.items():
        value = got[name]
        if expected is None or value is None:
            other = value if expected is None else expected
            assert other is None or not other.any(), f"{name}: on one side only"
        else:
            assert (value.shape, value.dtype) == (expected.shape, expected.dtype), name


def _check_values(
    ours: verify.Run, theirs: verify.Run, exact: Callable[[], verify.Run], *, apart: bool = False
) -> None:
    """Differences within the dtype's tolerance, or as near to float64 as stock is.

    16 bits and gradients that cancel leave stock itself far from what it computes. On devices
    ``apart`` projections round otherwise, and some leaky-relus take the other side.
    """
    judged = errors(theirs, ours)[2]
    (dtype,) = {tensor.dtype for tensor in theirs.outputs.values()}
    tolerance = TOLERANCE[dtype] * (2 if apart else 1)
    if all(error <= tolerance for error in judged.values()):
        return
    wide, branched = exact(), BRANCHED[dtype]
    rounding, own = errors(wide, theirs)[2], errors(wide, ours)[2]
    assert all(rounding[n] <= tolerance for n in theirs.outputs), f"{judged}, no second judge"
    wrong = differing(judged, rounding, own, tolerance, branched)
    assert not wrong, {name: (e, rounding[name], own[name]) for name, e in wrong.items()}


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
