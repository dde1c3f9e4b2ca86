"""A layer against its stock self on the same inputs: errors, time and memory."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gnn_backend import memory, verify
from gnn_backend.dispatch import bypass, lenient
from gnn_backend.errors import invalid
from gnn_backend.patching import State, registry
from gnn_backend.profile import Profile, profile

if TYPE_CHECKING:
    from rich.table import Table

Call = Callable[[], verify.Run]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found; prints as a table.

    Attributes
    ----------
    accelerated : bool
        Whether every known layer inside ran our kernels; if not, the rest compares stock with
        stock.
    reason : str or None
        Most frequent reason code of the calls that fell back; ``no-kernel`` if none was known.
    max_abs_error, max_rel_error : dict of str to float
        By tensor: ``out``, then each gradient by the name of its input or parameter. The relative
        error is max|difference| / max|stock|.
    peak_bytes : dict
        ``stock`` and ``backend``: growth of the peak memory during forward and backward. On the
        CPU it is the growth of the resident set, ``None`` where the system does not tell it.
    ms : dict
        ``stock`` and ``backend``: median time of forward and backward together.
    launches : int
        Kernel launches of one forward and backward.
    reference : str
        ``"stock"``, or how the stock layer was run where it cannot run on these inputs: on copies
        ``"stock on the CPU"`` or ``"stock in float32"``. Its time and memory are then ``None``.
    """

    accelerated: bool
    reason: str | None
    max_abs_error: dict[str, float]
    max_rel_error: dict[str, float]
    peak_bytes: dict[str, int | None]
    ms: dict[str, float | None]
    launches: int
    reference: str = "stock"

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain types, ready for JSON."""
        return dataclasses.asdict(self)

    def table(self) -> Table:
        """Return a rich table."""
        from gnn_backend.report import comparison_table

        return comparison_table(self)

    def __str__(self) -> str:
        from gnn_backend.report import render

        return render(self.table())


def compare(
    layer: nn.Module, *args: Any, repeats: int = 5, seed: int = 0, **kwargs: Any
) -> Comparison:
    """Run `layer` stock and accelerated on the same inputs, and compare.

    Both run forward and backward from the same random state, in the dtype of the inputs, with the
    same standard normal cotangent. All floating-point inputs are differentiated, those in tuples,
    lists and dicts too. Parameters, their ``.grad``, buffers and the random state are left alone.

    Parameters
    ----------
    layer : torch.nn.Module
        A layer of a supported host, or a model of such layers.
    *args, **kwargs
        Arguments of its forward.
    repeats : int
        Timed runs, of which the median is reported, after one that is not timed.
    seed : int
        Of the random state that both runs start from.

    Returns
    -------
    Comparison
        Prints as a table; ``to_dict()`` is ready for JSON.

    Raises
    ------
    InvalidArgument
        If `layer` is no module or `repeats` is below 1. Errors of the layer itself pass through.
    """
    if not isinstance(layer, nn.Module):
        raise invalid("layer", "not a module", type(layer).__name__, "a torch.nn.Module")
    if not isinstance(repeats, int) or repeats < 1:
        raise invalid("repeats", "not a count", repr(repeats), "an integer, at least 1")
    call = _seeded(layer, args, kwargs, seed)
    with _untouched(layer):
        with bypass():
            stock = _measure_stock(layer, args, kwargs, seed, repeats)
        with registry.scope(State("auto", registry.select())), lenient():
            with profile() as counted:
                ours = call()
            backend = _measure(call, repeats)
    absolute, relative = errors(stock.run, ours)
    return Comparison(
        accelerated=counted.calls > 0 and counted.fallbacks == 0,
        reason=_reason(counted),
        max_abs_error=absolute,
        max_rel_error=relative,
        peak_bytes={"stock": stock.peak, "backend": backend.peak},
        ms={"stock": stock.ms, "backend": backend.ms},
        launches=sum(counted.launches.values()),
        reference=stock.how,
    )


def errors(stock: verify.Run, ours: verify.Run) -> tuple[dict[str, float], dict[str, float]]:
    """Return the absolute and relative errors of outputs and gradients, by name.

    A gradient that one side lacks counts as zero; one that both lack is left out.
    """
    absolute: dict[str, float] = {}
    relative: dict[str, float] = {}
    pairs = [(n, t, ours.outputs[n]) for n, t in stock.outputs.items()]
    pairs += [(n, t, ours.gradients[n]) for n, t in stock.gradients.items()]  # type: ignore[misc]
    for name, expected, got in pairs:
        if expected is None and got is None:
            continue
        difference, scale = verify.difference_and_scale(*verify.none_as_zero(expected, got))
        worst = float(difference.max()) if difference.numel() else 0.0
        absolute[name] = worst
        relative[name] = worst / scale if scale else (0.0 if worst == 0 else float("inf"))
    return absolute, relative


def _seeded(layer: nn.Module, args: Any, kwargs: Mapping[str, Any], seed: int) -> Call:
    """Return a function that runs `layer` forward and backward on fresh leaves."""
    names = verify.argument_names(layer.forward, args, kwargs)

    def leaf(_: str, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.detach().clone().requires_grad_()
        return value

    args = tuple(verify.map_nested(n, a, leaf) for n, a in zip(names, args, strict=True))
    kwargs = {k: verify.map_nested(k, v, leaf) for k, v in kwargs.items()}

    def call() -> verify.Run:
        torch.manual_seed(seed)
        with torch.enable_grad():
            run = verify.run(layer, layer, args, kwargs, names, retain_graph=False)
        run.outputs = {n: t.detach() for n, t in run.outputs.items()}
        return dataclasses.replace(run, result=None)

    return call


def _reason(counted: Profile) -> str | None:
    if counted.calls == 0:
        return "no-kernel"
    return counted.reasons.most_common(1)[0][0] if counted.fallbacks else None


@dataclasses.dataclass(frozen=True)
class _Measured:
    run: verify.Run
    ms: float | None
    peak: int | None
    how: str = "stock"


def _measure_stock(
    layer: nn.Module, args: Any, kwargs: Mapping[str, Any], seed: int, repeats: int
) -> _Measured:
    """Measure the stock layer; where it cannot run, at least run it on copies that it can take."""
    try:
        return _measure(_seeded(layer, args, kwargs, seed), repeats)
    except torch.OutOfMemoryError:
        raise  # the CPU would take too long
    except Exception:
        for how, convert in _COPIES.items():
            positional, named = _copied((args, dict(kwargs)), convert)
            call = _seeded(convert(copy.deepcopy(layer)), positional, named, seed)
            with contextlib.suppress(Exception):
                return _Measured(call(), None, None, how)
        raise


def _copied(inputs: Any, convert: Callable[[Any], Any]) -> Any:
    return verify.map_nested("", inputs, lambda _, value: convert(value))


def _to_cpu(value: Any) -> Any:
    return value.to("cpu") if hasattr(value, "to") else value


def _to_float32(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    return value.float() if isinstance(value, nn.Module) else value


_COPIES: dict[str, Callable[[Any], Any]] = {
    "stock on the CPU": _to_cpu,
    "stock in float32": _to_float32,
}


def _measure(call: Call, repeats: int) -> _Measured:
    run = call()  # compiles, builds the graph's caches
    on_cuda = any(tensor.is_cuda for tensor in run.outputs.values())
    peak = memory.cuda_peak_bytes(call) if on_cuda else memory.resident_growth(call)
    times = []
    for _ in range(repeats):
        _synchronize()
        start = time.perf_counter()
        call()
        _synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return _Measured(run, statistics.median(times), peak)


def _synchronize() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextlib.contextmanager
def _untouched(layer: nn.Module) -> Iterator[None]:
    """Leave the layer's buffers and the random state as they were."""
    state = verify.random_state()
    try:
        with verify.preserved_buffers(layer):
            yield
    finally:
        verify.set_random_state(state)
