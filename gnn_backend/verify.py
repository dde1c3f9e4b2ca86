"""Running the stock and the fused code on the same numbers, and comparing what comes out."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_backend.config import get_config
from gnn_backend.errors import VerificationError
from gnn_backend.judging import (
    BRANCHED,
    difference_and_scale,
    differing,
    errors,
    least_scale,
    none_as_zero,
)
from gnn_backend.ops.dropout import Replaying, recording

SEED = 0  # of the cotangent
RTOL = {torch.float64: 1e-10, torch.float16: 1e-2, torch.bfloat16: 8e-2}
"""Largest relative difference accepted by dtype; float32 has ``config.verify_rtol``."""


@dataclasses.dataclass
class Run:
    """What one side computed: the result, its float tensors and its gradients, by name."""

    result: Any
    outputs: dict[str, Tensor]
    gradients: dict[str, Tensor | None]


def run_both(
    symbol: str,
    original: Callable[..., Any],
    fast: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Run both with the same random state, compare, and return the fused result.

    Outputs are compared at once, and, where a gradient can be asked for, the gradients of the
    inputs and parameters for one seeded cotangent. Stock drops the attention weights that the
    fused code dropped. What differs is compared with a run of stock in float64 too, and accepted
    with a warning where that accounts for it, see :func:`gnn_backend.judging.differing`.
    Nobody's ``.grad`` is touched; the random state is left as the stock code leaves it, buffers
    as the fused code does.

    Raises
    ------
    VerificationError
        Naming the tensor, its worst element, both values and the tolerance.
    """
    names = argument_names(original, args, kwargs)
    module = args[0] if args and isinstance(args[0], torch.nn.Module) else None
    before = random_state()
    with recording() as masks:
        ours = run(fast, module, args, kwargs, names)
    set_random_state(before)
    with preserved_buffers(module), replaying(masks):
        reference = run(original, module, args, kwargs, names)
    try:
        check(symbol, "output", reference.outputs, ours.outputs)
        check(symbol, "gradient of", reference.gradients, ours.gradients)
    except VerificationError as error:
        after = random_state()
        set_random_state(before)
        with replaying(masks):
            exact = exact_run(original, args, kwargs, names)
        set_random_state(after)
        _check_against_exact(symbol, error, exact, reference, ours)
    return ours.result


def replaying(masks: list[Any]) -> contextlib.AbstractContextManager[Any]:
    """Let stock drop the attention weights of these masks."""
    return Replaying(masks) if masks else contextlib.nullcontext()


def exact_run(
    original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], names: list[str]
) -> Run | None:
    """The stock code on copies in float64, with nothing of the caller's attached; None if it fails.

    Some layers make tensors of float32 by themselves, and there may be no memory for it.
    """

    def widened(_: str, value: Any) -> Any:
        if isinstance(value, torch.nn.Module):
            return copy.deepcopy(value).double()
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.detach().double().requires_grad_(value.requires_grad)
        return value

    with contextlib.suppress(Exception):
        wide = tuple(map_nested("", arg, widened) for arg in args)
        module = wide[0] if wide and isinstance(wide[0], torch.nn.Module) else None
        return run(original, module, wide, map_nested("", dict(kwargs), widened), names)
    return None


def _check_against_exact(
    symbol: str, error: VerificationError, exact: Run | None, reference: Run, ours: Run
) -> None:
    """Raise `error`, unless what differs is right in the eyes of a run in float64."""
    dtypes = {tensor.dtype for tensor in reference.outputs.values()}
    if exact is None or len(dtypes) != 1 or not dtypes < BRANCHED.keys():
        raise error
    (dtype,) = dtypes
    judged = errors(reference, ours)[2]
    rounding, own = errors(exact, reference)[2], errors(exact, ours)[2]
    tolerance = RTOL.get(dtype, get_config().verify_rtol)
    if any(rounding[name] > max(tolerance, BRANCHED[dtype]) for name in reference.outputs):
        raise error
    if differing(judged, rounding, own, tolerance, BRANCHED[dtype]):
        raise error
    for name in sorted(name for name, e in judged.items() if not e <= tolerance):
        warnings.warn(
            f"{symbol}: {name} differs from stock by {judged[name]:.2g} relative, which is "
            f"rounding: from float64 ours is {own[name]:.2g} away, stock {rounding[name]:.2g}.",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip


def run(
    function: Callable[..., Any],
    module: torch.nn.Module | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    names: list[str],
    *,
    retain_graph: bool = True,
    by_backward: bool = False,
) -> Run:
    """Call `function` on aliases of its arguments and differentiate it towards them.

    The aliases stay connected to the caller's tensors, so the result can be used further, but a
    gradient towards one of them does not run through what produced the others.
    ``by_backward`` is for functions that compute parts of themselves anew in backward, which
    ``torch.autograd.grad`` refuses.
    """
    sources: dict[str, Tensor] = {}

    def alias(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        sources[name] = value.view_as(value)
        return sources[name]

    grad = torch.is_grad_enabled()
    if grad:
        args = tuple(map_nested(n, a, alias) for n, a in zip(names, args, strict=True))
        kwargs = {k: map_nested(k, v, alias) for k, v in kwargs.items()}
        sources.update(parameters(module))
    result = function(*args, **kwargs)
    outputs = float_tensors("out", result)
    if not grad:
        found: dict[str, Tensor | None] = {}
    elif by_backward:
        found = _gradients_by_backward(outputs, sources)
    else:
        found = gradients(outputs, sources, retain_graph=retain_graph)
    return Run(result, outputs, found)


def parameters(module: torch.nn.Module | None) -> dict[str, Tensor]:
    """Parameters of `module` that want a gradient, by name."""
    if module is None:
        return {}
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def gradients(
    outputs: Mapping[str, Tensor], sources: Mapping[str, Tensor], *, retain_graph: bool = True
) -> dict[str, Tensor | None]:
    """Gradients of a seeded normal combination of `outputs` towards `sources`.

    No ``.grad`` is written, and the autograd graph is kept if asked. A source that no output
    depends on has the gradient ``None``.
    """
    ends = [t for t in outputs.values() if t.requires_grad]
    if not ends or not sources:
        return dict.fromkeys(sources)
    found = torch.autograd.grad(
        ends,
        list(sources.values()),
        [cotangent(t, SEED + k) for k, t in enumerate(ends)],
        retain_graph=retain_graph,
        allow_unused=True,
    )
    return dict(zip(sources, found, strict=True))


def _gradients_by_backward(
    outputs: Mapping[str, Tensor], sources: Mapping[str, Tensor]
) -> dict[str, Tensor | None]:
    """:func:`gradients` through ``.grad``, which is put back for the sources."""
    ends = [t for t in outputs.values() if t.requires_grad]
    saved = {name: source.grad if source.is_leaf else None for name, source in sources.items()}
    for source in sources.values():
        source.grad = None
        if not source.is_leaf:
            source.retain_grad()
    torch.autograd.backward(ends, [cotangent(t, SEED + k) for k, t in enumerate(ends)])
    found = {name: source.grad for name, source in sources.items()}
    for name, source in sources.items():
        source.grad = saved[name]
    return found


def cotangent(like: Tensor, seed: int) -> Tensor:
    """Standard normal numbers, the same on every device and in every dtype up to rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator).to(like)


def check(
    symbol: str,
    what: str,
    reference: Mapping[str, Tensor | None],
    ours: Mapping[str, Tensor | None],
) -> None:
    """Raise VerificationError where two sets of tensors differ by more than the tolerance."""
    if reference.keys() != ours.keys():
        raise VerificationError(
            f"{symbol}: {what}: the fused code gives {sorted(ours)}, stock {sorted(reference)}."
        )
    least = least_scale(reference)
    for name, expected in reference.items():
        _check_one(symbol, f"{what} {name}", expected, ours[name], least)


def _check_one(
    symbol: str, what: str, expected: Tensor | None, got: Tensor | None, least: float
) -> None:
    if expected is None and got is None:
        return
    expected, got = none_as_zero(expected, got)
    if expected.shape != got.shape or expected.dtype != got.dtype:
        raise VerificationError(
            f"{symbol}: {what} has shape {tuple(got.shape)} and dtype {got.dtype}; "
            f"stock gives {tuple(expected.shape)} and {expected.dtype}."
        )
    tolerance = RTOL.get(expected.dtype, get_config().verify_rtol)
    difference, scale = difference_and_scale(expected, got)
    scale = max(scale, least)
    if difference.numel() == 0 or bool((difference <= tolerance * scale).all()):
        return
    worst = int(difference.flatten().argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), expected.shape))
    raise VerificationError(
        f"{symbol}: {what} differs, worst at {index}: fused {got[index].item():.9g}, stock "
        f"{expected[index].item():.9g}; difference {difference[index].item():.3g}, tolerance "
        f"{tolerance * scale:.3g} ({tolerance:g} of the size {scale:.3g})."
    )


def float_tensors(name: str, value: Any) -> dict[str, Tensor]:
    """The floating-point tensors in a nest of tuples, lists and dicts, by name."""
    found: dict[str, Tensor] = {}

    def note(name: str, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            found[name] = value
        return value

    map_nested(name, value, note)
    return found


def map_nested(name: str, value: Any, function: Callable[[str, Any], Any]) -> Any:
    """Rebuild a nest of tuples, lists and dicts with `function` applied to the leaves."""
    if type(value) in (tuple, list):
        return type(value)(map_nested(f"{name}[{k}]", v, function) for k, v in enumerate(value))
    if type(value) is dict:
        return {k: map_nested(f"{name}[{k!r}]", v, function) for k, v in value.items()}
    return function(name, value)


def argument_names(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[str]:
    """Names of the positional arguments, from the signature."""
    with contextlib.suppress(TypeError, ValueError):
        bound = inspect.signature(function).bind(*args, **kwargs)
        names: list[str] = []
        for name, parameter in bound.signature.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                rest = range(len(args) - len(names))
                return [*names, *(f"{name}[{k}]" for k in rest)]
            if name not in kwargs:
                names.append(name)
        if len(names) >= len(args):
            return names[: len(args)]
    return [f"arg{k}" for k in range(len(args))]


@dataclasses.dataclass(frozen=True)
class RandomState:
    """State of torch's CPU generator, of the CUDA ones if in use, and of Python's and NumPy's."""

    cpu: Tensor
    cuda: list[Tensor]
    python: Any
    numpy: Any


def random_state() -> RandomState:
    """The state of all generators that a layer may draw from."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    states = torch.cuda.get_rng_state_all() if cuda else []
    return RandomState(torch.get_rng_state(), states, random.getstate(), np.random.get_state())


def set_random_state(state: RandomState) -> None:
    """Put back what :func:`random_state` returned."""
    torch.set_rng_state(state.cpu)
    if state.cuda:
        torch.cuda.set_rng_state_all(state.cuda)
    random.setstate(state.python)
    np.random.set_state(state.numpy)


def seed_all(seed: int) -> None:
    """Seed torch's generators, and Python's and NumPy's, from which some layers of DGL draw."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextlib.contextmanager
def preserved_buffers(module: torch.nn.Module | None) -> Iterator[None]:
    """Put the values of the module's buffers back on leaving the ``with`` block."""
    buffers = list(module.buffers()) if module is not None else []
    saved = [b.clone() for b in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, saved, strict=True):
                buffer.copy_(value)
