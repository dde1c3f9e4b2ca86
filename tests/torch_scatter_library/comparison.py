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
    torch.float64: 1e-11,  # the library lets gradients run through the eps of its logarithms
    torch.float32: 2e-6,
    torch.bfloat16: 6e-2,
    torch.float16: 8e-3,
}


@dataclasses.dataclass
class Outcome:
    """What came of one call: the largest relative error, and what is wrong."""

    error: float = 0.0
    problem: str = ""


def undefined(call: Call) -> str:
    """What the library leaves open or refuses in this call, so that only values are compared.

    With ``out``, segment_coo says "places" of what ``out`` won that are left from another row, and
    sends the gradient there; scatter_logsumexp spoils what its own backward wants; an index that
    broadcasts over blocks is accepted by segment_coo, but not by its backward.
    """
    out = call.name.endswith(", out")
    if call.function.startswith("segment") and "coo" in call.function:
        if out and any(op in call.name for op in ("min", "max")):
            return "places"
        return "gradients" if ", alike" in call.name else ""
    return "gradients" if call.function == "scatter_logsumexp" and out else ""


def run(function: Any, call: Call) -> tuple[list[Tensor], list[Tensor]]:
    """Results, with ``out`` as it was left, and the gradient of the source where there is one."""
    (src, *rest), named = call.arguments()
    differentiable = src.is_floating_point()
    src = src.requires_grad_(differentiable)
    result = function(src, *rest, **named)
    results = list(result) if isinstance(result, tuple) else [result]
    out = named.get("out")
    if out is not None and out.data_ptr() != results[0].data_ptr():
        results.append(out)
    gradients = []
    if differentiable and not undefined(call):
        cotangent = torch.randn(results[0].shape, generator=torch.Generator().manual_seed(3))
        gradients = list(torch.autograd.grad(results[0], src, cotangent.to(results[0].dtype)))
    return [r.detach() for r in results], gradients


def compare(library: Any, ours: Any, call: Call) -> Outcome:
    """Compare one call; of ours the second, for which an unsorted index is worth sorting."""
    want, want_grads = run(getattr(library, call.function), call)
    run(getattr(ours, call.function), call)
    got, got_grads = run(getattr(ours, call.function), call)
    outcome = Outcome()
    names = ["out", *(f"out {k}" for k in range(1, len(want)))]
    if undefined(call) == "places":
        names, want, got = names[:1], want[:1], got[:1]
    pairs = [*zip(names, want, got, strict=True)]
    pairs += [("gradient", *both) for both in zip(want_grads, got_grads, strict=True)]
    for name, a, b in pairs:
        if a.shape != b.shape or a.dtype != b.dtype or a.is_contiguous() > b.is_contiguous():
            outcome.problem += f"{name} is {_described(b)}, expected {_described(a)}; "
        elif not a.is_floating_point():
            if not torch.equal(a, b):
                outcome.problem += f"{name} differs in {int((a != b).sum())} of {a.numel()}; "
        else:
            error = relative_error(a, b)
            outcome.error = max(outcome.error, error)
            if not error <= TOLERANCES[a.dtype]:
                outcome.problem += f"{name} differs by {error:.1e}; "
    return outcome


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype} with strides {tensor.stride()}"


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
