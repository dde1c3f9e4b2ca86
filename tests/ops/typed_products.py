"""Problems of the typed linear, and checks against the twin in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnn_backend.ops import reference
from gnn_backend.ops.typed_linear import Bounds, typed_linear, typed_weight_grad

#: Relative error that rounding may make: of a product as tf32, and of a result that is stored.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
TF32 = 1e-3


@dataclass
class Problem:
    """Operands of one call; ``types``: of each place."""

    x: Tensor
    grad: Tensor
    weight: Tensor
    bounds: Bounds
    types: Tensor
    index: dict[str, Any]


def problem(
    lengths: list[int],
    inner: int,
    outer: int,
    heads: int = 0,
    *,
    each: bool = False,
    dtype: torch.dtype = torch.float32,
    rows: bool = False,
    out_rows: bool = False,
    scale: bool = False,
    device: str = "cpu",
) -> Problem:
    """A problem with so many places of each type; ``each``: heads have weights of their own."""
    generator = torch.Generator(device=device).manual_seed(sum(lengths) + inner + outer + heads)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    places, middle = sum(lengths), (heads,) if heads else ()
    ptr = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    index: dict[str, Any] = {}
    if rows:
        index["rows"] = torch.randint(
            0, 50, (places,), generator=generator, device=device, dtype=torch.int32
        )
    if out_rows:
        order = torch.randperm(places + 9, generator=generator, device=device)[:places]
        index |= {"out_rows": order.int(), "num_out": places + 9}
    if scale:
        index["scale"] = torch.rand(places, generator=generator, device=device) + 0.5
    numbers = torch.arange(len(lengths), device=device)
    return Problem(
        draw(50 if rows else places, *middle, inner),
        draw(places + 9 if out_rows else places, *middle, outer),
        draw(len(lengths), *(middle if each else ()), inner, outer),
        Bounds(ptr),
        torch.repeat_interleave(numbers, torch.tensor(lengths, device=device)),
        index,
    )


def close(got: Tensor, want: Tensor, tolerance: float) -> None:
    assert got.shape == want.shape
    if want.numel():
        error = (got.double() - want).abs().max()
        assert error <= tolerance * want.abs().max().clamp(min=1.0), float(error)


def check_product(given: Problem, tolerance: float | None = None) -> None:
    """The product and the transposed product against the twin; twice, bit by bit."""
    x, weight, index = given.x, given.weight, given.index
    tolerance = tolerance or TOLERANCE[x.dtype]
    want = reference.typed_linear(x.double(), weight.double(), given.types, **index)
    got = typed_linear(x, weight, given.bounds, **index)
    assert got.dtype == x.dtype
    close(got, want, tolerance)
    assert torch.equal(got, typed_linear(x, weight, given.bounds, **index))
    turned = weight.transpose(-1, -2).contiguous()
    close(typed_linear(x, turned, given.bounds, transposed=True, **index), want, tolerance)


def check_gradient(given: Problem, tolerance: float | None = None) -> None:
    """The gradient of the weights against the twin; twice, bit by bit."""
    x, grad, weight, index = given.x, given.grad, given.weight, given.index
    tolerance = tolerance or TOLERANCE[x.dtype]
    sides = {"x_rows": index.get("rows"), "grad_rows": index.get("out_rows"),
             "scale": index.get("scale"), "heads": weight.dim() == 4}  # fmt: skip
    want = reference.typed_weight_grad(x.double(), grad.double(), given.types, len(weight), **sides)
    got = typed_weight_grad(x, grad, given.bounds, **sides)
    assert got.dtype == x.dtype and got.shape == want.shape
    # Sums of many products of both signs: against the size that they have without cancelling.
    size = max(1.0, given.bounds.ptr.diff().max().item() ** 0.5)
    assert (got.double() - want).abs().max() <= 4 * tolerance * size
    assert torch.equal(got, typed_weight_grad(x, grad, given.bounds, **sides))


def check(given: Problem, tolerance: float | None = None) -> None:
    """Product and gradient."""
    check_product(given, tolerance)
    check_gradient(given, tolerance)
