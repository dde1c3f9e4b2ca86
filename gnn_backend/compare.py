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

from gnn_backend import draws, memory, verify
from gnn_backend.config import get_config
from gnn_backend.dispatch import bypass, lenient
from gnn_backend.errors import invalid
from gnn_backend.judging import BRANCHED, errors
from gnn_backend.ops.dropout import recording
from gnn_backend.patching import State, registry
from gnn_backend.profile import Profile, profile

if TYPE_CHECKING:
    from rich.table import Table

Call = Callable[[], verify.Run]
_OWN = "gnn_backend.nn."  # layers that no host has


@dataclasses.dataclass(frozen=True)
class Sample:
    """A layer and the arguments of one call of it.

    Attributes
    ----------
    layer : torch.nn.Module
    args, kwargs
        Arguments of its forward.
    rematerializes : bool
        Whether it computes parts of itself anew in backward, as checkpointing does, so that
        gradients have to be taken by ``backward()``.
    """

    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rematerializes: bool = False

    def map(self, function: Callable[[Any], Any]) -> Sample:
        """The same call with a deep copy of the layer and all arguments changed by `function`."""
        args, kwargs = verify.map_nested("", (self.args, dict(self.kwargs)),
                                         lambda _, value: function(value))  # fmt: skip
        layer = function(copy.deepcopy(self.layer))
        return dataclasses.replace(self, layer=layer, args=args, kwargs=kwargs)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found; prints as a table.

    Attributes
    ----------
    accelerated : bool
        Whether every known layer inside ran our kernels; if not, the rest compares stock with
        stock.
    reason : str or None
        Why not: the most frequent reason code of the calls that fell back, or, if none was known,
        ``cpu-operators`` where the host's own sparse operators ran and else ``no-kernel``.
    max_abs_error, max_rel_error : dict of str to float
        By tensor: ``out``, then each gradient by the name of its input or parameter. The relative
        error is max|difference| / max|stock|.
    judged_error : dict of str to float
        The relative error as mode ``verify`` judges it: where a tensor is below a hundredth of
        the largest output or gradient, the error is relative to that share.
    peak_bytes : dict
        ``stock`` and ``backend``: growth of the peak memory during forward and backward. On the
        CPU it is the growth of the resident set, ``None`` where the system does not tell it.
    ms : dict
        ``stock`` and ``backend``: median time of forward and backward together.
    launches : int
        Kernel launches of one forward and backward.
    symbols : list of str
        Host symbols whose calls ran our kernels, layers and operators.
    reasons : list of str
        All reason codes that came up, the most frequent first.
    rounding, own_rounding : dict of str to float
        Where an error is above the tolerance: how far the stock layer and the accelerated one are
        from a run of the stock layer in float64, as ``judged_error`` counts. Empty else.
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
    symbols: list[str]
    reasons: list[str]
    judged_error: dict[str, float]
    reference: str = "stock"
    rounding: dict[str, float] = dataclasses.field(default_factory=dict)
    own_rounding: dict[str, float] = dataclasses.field(default_factory=dict)

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
        If `layer` is no module or one of our own, which has no stock, or `repeats` is below 1.
        Errors of the layer itself pass through.
    """
    if not isinstance(layer, nn.Module):
        raise invalid("layer", "not a module", type(layer).__name__, "a torch.nn.Module")
    if type(layer).__module__.startswith(_OWN):
        raise invalid(
            "layer", "has no stock to compare with", type(layer).__name__, "a layer of DGL or PyG",
            "Its operators are judged by their twins in gnn_backend.ops.twins",
        )  # fmt: skip
    if not isinstance(repeats, int) or repeats < 1:
        raise invalid("repeats", "not a count", repr(repeats), "an integer, at least 1")
    return compare_samples(Sample(layer, args, kwargs), repeats=repeats, seed=seed)


def compare_samples(
    ours: Sample, stock: Sample | None = None, *, repeats: int = 5, seed: int = 0
) -> Comparison:
    """:func:`compare` for a sample, with the stock layer on these inputs or on those of `stock`.

    Parameters
    ----------
    ours : Sample
    stock : Sample, optional
        The same layer and inputs on the CPU, for a host that cannot run on the device of `ours`.
    repeats : int
        Timed runs; with 0 neither time nor memory is measured.
    """
    with _untouched(ours.layer):
        reference = _on_the_cpu(stock, seed) if stock else _measure_stock(ours, seed, repeats)
        call = _seeded(ours, seed)
        with registry.scope(State("auto", registry.select())), lenient():
            with _alike(reference.how), profile() as counted, recording() as masks:
                run = call()
            ms, peak = _cost(call, run, repeats)
        if masks:  # stock dropped other weights
            copied = stock or reference.cpu
            with _host_alone(), verify.replaying(masks):
                again = _on_the_cpu(copied, seed).run if copied else _seeded(ours, seed)()
            reference = dataclasses.replace(reference, run=again)
        absolute, relative, judged = errors(reference.run, run)
        exact = _exact(reference, ours, masks, seed, judged)
    accelerated = counted.calls > 0 and counted.fallbacks == 0
    reasons = _reasons(counted)
    return Comparison(
        accelerated=accelerated,
        reason=None if accelerated else reasons[0],
        max_abs_error=absolute,
        max_rel_error=relative,
        peak_bytes={"stock": reference.peak, "backend": peak},
        ms={"stock": reference.ms, "backend": ms},
        launches=sum(counted.launches.values()),
        symbols=[s for s, stats in counted.by_symbol.items() if stats.accelerated],
        reasons=reasons,
        judged_error=judged,
        reference=reference.how,
        rounding=errors(exact, reference.run)[2] if exact else {},
        own_rounding=errors(exact, run)[2] if exact else {},
    )


def _exact(
    reference: _Measured, ours: Sample, masks: list[Any], seed: int, judged: Mapping[str, float]
) -> verify.Run | None:
    """The stock layer in float64, if an error asks for it and stock ran as it is."""
    dtypes = {tensor.dtype for tensor in reference.run.outputs.values()}
    if len(dtypes) != 1 or not dtypes < BRANCHED.keys() or reference.how not in JUDGES:
        return None
    tolerance = verify.RTOL.get(dtypes.pop(), get_config().verify_rtol)
    if all(error <= tolerance for error in judged.values()):
        return None
    with contextlib.suppress(Exception):  # no memory, or it makes tensors of float32 by itself
        wide = (reference.cpu or ours).map(_to_float64)
        with _host_alone(), verify.replaying(masks), _untouched(wide.layer):
            return _seeded(wide, seed)()
    return None


def _seeded(sample: Sample, seed: int) -> Call:
    """Return a function that runs a sample forward and backward on fresh leaves."""
    layer = sample.layer
    names = verify.argument_names(layer.forward, sample.args, sample.kwargs)

    def leaf(_: str, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.detach().clone().requires_grad_()
        return value

    args = tuple(verify.map_nested(n, a, leaf) for n, a in zip(names, sample.args, strict=True))
    kwargs = {k: verify.map_nested(k, v, leaf) for k, v in sample.kwargs.items()}

    def call() -> verify.Run:
        verify.seed_all(seed)
        with torch.enable_grad():
            run = verify.run(layer, layer, args, kwargs, names, retain_graph=False,
                             by_backward=sample.rematerializes)  # fmt: skip
        run.outputs = {n: t.detach() for n, t in run.outputs.items()}
        return dataclasses.replace(run, result=None)

    return call


def _reasons(counted: Profile) -> list[str]:
    """Reason codes, the most frequent first; at least one if nothing ran on our kernels."""
    codes = [code for code, _ in counted.reasons.most_common()]
    if counted.host_operators and "cpu-operators" not in codes:
        codes.append("cpu-operators")
    return codes or ([] if counted.calls else ["no-kernel"])


@dataclasses.dataclass(frozen=True)
class _Measured:
    run: verify.Run
    ms: float | None
    peak: int | None
    how: str = "stock"
    cpu: Sample | None = None  # what ran, if it was on the CPU in the place of another device


def _on_the_cpu(stock: Sample, seed: int) -> _Measured:
    """Run the host's own code, with nothing of ours around it."""
    with _untouched(stock.layer), _host_alone():
        return _Measured(_seeded(stock, seed)(), None, None, ON_THE_CPU, stock)


def _measure_stock(sample: Sample, seed: int, repeats: int) -> _Measured:
    """Measure the stock layer; where it cannot run, at least run it on copies that it can take."""
    try:
        with _host_alone():
            call = _seeded(sample, seed)
            run = call()
            return _Measured(run, *_cost(call, run, repeats))
    except torch.OutOfMemoryError:
        raise  # the CPU would take too long
    except Exception:
        for how, convert in _COPIES.items():
            with contextlib.suppress(Exception):
                # A graph on a device that its host does not know leaves it with our help.
                with registry.scope(State("auto", registry.select())):
                    copied = sample.map(convert)
                with _host_alone(), _alike(how):
                    on_cpu = copied if how == ON_THE_CPU else None
                    return _Measured(_seeded(copied, seed)(), None, None, how, on_cpu)
        raise


@contextlib.contextmanager
def _host_alone() -> Iterator[None]:
    """Nothing is accelerated: neither what is enabled nor layers that are by themselves."""
    with registry.scope(None), bypass():
        yield


@contextlib.contextmanager
def _alike(how: str) -> Iterator[None]:
    """Let both devices draw and multiply alike, where they are compared with each other."""
    if how != ON_THE_CPU:
        yield
        return
    saved = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        with draws.on_the_cpu():
            yield
    finally:
        torch.backends.cudnn.allow_tf32 = saved


def _to_cpu(value: Any) -> Any:
    return value.cpu() if hasattr(value, "cpu") else value


def _to_float32(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    return value.float() if isinstance(value, nn.Module) else value


def _to_float64(value: Any) -> Any:
    if isinstance(value, nn.Module) or (isinstance(value, Tensor) and value.is_floating_point()):
        return value.double()
    return value


ON_THE_CPU = "stock on the CPU"
JUDGES = ("stock", ON_THE_CPU)  # in another precision signs inside a leaky-relu differ
_COPIES: dict[str, Callable[[Any], Any]] = {
    ON_THE_CPU: _to_cpu,
    "stock in float32": _to_float32,
}


def _cost(call: Call, run: verify.Run, repeats: int) -> tuple[float | None, int | None]:
    """Milliseconds and peak bytes of a call that has been made before, giving `run`."""
    if repeats == 0:
        return None, None
    on_cuda = any(tensor.is_cuda for tensor in run.outputs.values())
    peak = memory.cuda_peak_bytes(call) if on_cuda else memory.resident_growth(call)
    times = []
    for _ in range(repeats):
        _synchronize()
        start = time.perf_counter()
        call()
        _synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times), peak


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
