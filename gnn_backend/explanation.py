"""A dry run: which layers of a model would be accelerated, and why the others would not."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from torch import nn

from gnn_backend import verify
from gnn_backend.dispatch import Dispatcher, lenient, observing
from gnn_backend.errors import invalid
from gnn_backend.instances import overrides, patch_of
from gnn_backend.patching import State, registry
from gnn_backend.profile import profile
from gnn_backend.reasons import REASONS

if TYPE_CHECKING:
    from rich.table import Table


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """What is known about one layer.

    Attributes
    ----------
    name : str
        Its path in the model, as in ``named_modules()``; ``""`` is the model itself, and
        ``"(function)"`` stands for calls outside any known layer.
    symbol : str
        ``host.layer``.
    accelerated : bool
        Whether it runs fused; without a sample call, as far as that can be known.
    reason, explanation : str or None
        Code and text, where it runs the stock code.
    calls : int
        Dispatched calls during the sample call.
    """

    name: str
    symbol: str
    accelerated: bool
    reason: str | None
    explanation: str | None
    calls: int = 0


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The report of :func:`explain`; prints as a table."""

    layers: list[LayerReport]
    sampled: bool
    choices: list[str] = dataclasses.field(default_factory=list)
    """What attention and aggregation ran with in the sample call, and why."""

    @property
    def accelerated(self) -> bool:
        """Whether there is a known layer and all of them are accelerated."""
        return bool(self.layers) and all(layer.accelerated for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain types, ready for JSON."""
        return dataclasses.asdict(self)

    def table(self) -> Table:
        """Return a rich table."""
        from gnn_backend.report import explanation_table

        return explanation_table(self)

    def __str__(self) -> str:
        from gnn_backend.report import render

        return render(self.table())


def explain(model: nn.Module, *args: Any, **kwargs: Any) -> Explanation:
    """Say for each layer whether it would be accelerated, and if not, why.

    With the arguments of a sample call the model runs forward once, with acceleration on, and the
    decisions of that call are reported. Parameters, gradients, buffers and the random state are
    left as they were. Without arguments only what the layers themselves show is known.

    Parameters
    ----------
    model : torch.nn.Module
        The model, or one layer.
    *args, **kwargs
        Arguments of a sample call, optional.

    Returns
    -------
    Explanation
        One :class:`LayerReport` for each graph layer; prints as a table.

    Raises
    ------
    InvalidArgument
        If `model` is no module.
    """
    if not isinstance(model, nn.Module):
        raise invalid("model", "not a module", type(model).__name__, "a torch.nn.Module")
    sampled = bool(args or kwargs)
    with profile() as record:
        decisions = _sample(model, args, kwargs) if sampled else []
    layers, whole = [], _Whole()
    for name, layer in model.named_modules():
        mine = [(s, ok, r) for s, who, ok, r in decisions if who is layer]
        if not mine and whole.has(name):
            continue
        if report := _report(name, layer, mine, sampled):
            layers.append(report)
            whole.add(name, report)
    known = {id(layer) for layer in model.modules()}
    rest = [(s, ok, r) for s, who, ok, r in decisions if id(who) not in known]
    for symbol in dict.fromkeys(s for s, _, _ in rest):
        layers.append(_decided("(function)", symbol, [d for d in rest if d[0] == symbol]))
    return Explanation(layers, sampled, list(record.choices))


class _Whole:
    """Names of layers that were accelerated as a whole, and so without a call of what they hold."""

    def __init__(self) -> None:
        self._prefixes: list[str] = []

    def add(self, name: str, report: LayerReport) -> None:
        if report.accelerated and report.calls:
            self._prefixes.append(f"{name}." if name else "")

    def has(self, name: str) -> bool:
        """Whether a module is inside of one of them; these are met before what they hold."""
        return name.startswith(tuple(self._prefixes))


def _sample(model: nn.Module, args: Any, kwargs: Any) -> list[tuple[str, Any, bool, str | None]]:
    decisions: list[tuple[str, Any, bool, str | None]] = []
    random = verify.random_state()
    everything = State("auto", registry.select())
    try:
        with (
            registry.scope(everything),
            lenient(),
            observing(lambda *decision: decisions.append(decision)),
            verify.preserved_buffers(model),
        ):
            model(*args, **kwargs)
    finally:
        verify.set_random_state(random)
    return decisions


def _report(
    name: str, layer: nn.Module, decisions: list[tuple[str, bool, str | None]], sampled: bool
) -> LayerReport | None:
    patch = patch_of(layer)
    if patch is None and decisions:
        return _decided(name, decisions[0][0], decisions)
    if patch is None:
        host = _host_of(layer)
        return _stock(name, f"{host}.{type(layer).__name__}", "no-kernel") if host else None
    if decisions:
        return _decided(name, patch.symbol, decisions)
    if overrides(layer, patch):
        return _stock(name, patch.symbol, "overridden-forward")
    if sampled:
        return _stock(name, patch.symbol, "not-called")
    dispatcher = patch.replacement
    assert isinstance(dispatcher, Dispatcher)
    dispatcher.resolve()
    reason = dispatcher.static(layer) if callable(dispatcher.static) else None
    return _stock(name, patch.symbol, reason) if reason else _decided(name, patch.symbol, [])


def _decided(name: str, symbol: str, decisions: list[tuple[str, bool, str | None]]) -> LayerReport:
    reason = next((reason for _, accelerated, reason in decisions if not accelerated), None)
    report = _stock(name, symbol, reason) if reason else LayerReport(name, symbol, True, None, None)
    return dataclasses.replace(report, calls=len(decisions))


def _stock(name: str, symbol: str, reason: str) -> LayerReport:
    return LayerReport(name, symbol, False, reason, REASONS.get(reason))


def _host_of(layer: nn.Module) -> str | None:
    """Host of a convolution that has no patch; containers and dense layers are none."""
    module = type(layer).__module__
    return registry.host_of(module) if ".conv" in module else None
