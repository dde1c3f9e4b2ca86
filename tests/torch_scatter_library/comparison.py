"""One call of the library and the same call of ours: values, places, gradients."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from tests.torch_scatter_library.cases import Call

#: Largest difference, relative to the largest number there, by dtype. In 16 bits the library adds
#: up in 16 bits, ours in 32.
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 2e-6,
    torch.bfloat16: 6e-2,
    torch.float16: 8e-3,
}


@dataclasses.dataclass
class Outcome:
    """What came of one call: the largest relative error, and what is wrong."""

    error: float = 0.0
    problem: str = ""


def run(function: Any, call: Call) -> tuple[list[Tensor], list[Tensor]]:
    """Results, with ``out`` as it was left, and the gradient of the source."""
    (src, *rest), named = call.arguments()
    differentiable = src.is_floating_point()
    src = src.requires_grad_(differentiable)
    result = function(src, *rest, **named)
    results = list(result) if isinstance(result, tuple) else [result]
    out = named.get("out")
    if out is not None and out.data_ptr() != results[0].data_ptr():
        results.append(out)
    gradients = []
    if differentiable:
        cotangent = torch.randn(results[0].shape, generator=torch.Generator().manual_seed(3))
        gradients = list(torch.autograd.grad(results[0], src, cotangent.to(results[0].dtype)))
    return [r.detach() for r in results], gradients


def compare(library: Any, ours: Any, call: Call) -> Outcome:
    """Compare one call."""
    want, want_grads = run(getattr(library, call.function), call)
    got, got_grads = run(getattr(ours, call.function), call)
    outcome = Outcome()
    names = ["out", *(f"out {k}" for k in range(1, len(want)))]
    pairs = [*zip(names, want, got, strict=True),
             *zip(["gradient"], want_grads, got_grads)]  # fmt: skip  # noqa: B905
    for name, a, b in pairs:
        if a.shape != b.shape or a.dtype != b.dtype or a.is_contiguous() > b.is_contiguous():
            outcome.problem += f"{name} is {tuple(b.shape)} {b.dtype}, expected {tuple(a.shape)} {a.dtype}; "  # fmt: skip # noqa: E501
        elif not a.is_floating_point():
            if not torch.equal(a, b):
                outcome.problem += f"{name} differs in {int((a != b).sum())} of {a.numel()}; "
        else:
            error = relative_error(a, b)
            outcome.error = max(outcome.error, error)
            if not error <= TOLERANCES[a.dtype]:
                outcome.problem += f"{name} differs by {error:.1e}; "
    return outcome


def relative_error(want: Tensor, got: Tensor) -> float:
    """Largest difference over the largest number; infinite where NaN or infinities differ."""
    a, b = want.double(), got.double()
    same = (a == b) | (a.isnan() & b.isnan())
    if same.all():
        return 0.0
    if not (a.isfinite() & b.isfinite() | same).all():
        return float("inf")
    top = float(a[a.isfinite()].abs().max())
    return float((a - b)[~same].abs().max()) / max(top, 1e-30)
