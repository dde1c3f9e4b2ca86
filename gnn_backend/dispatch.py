"""The one way from a host's call to the fused path or back to the stock code.

An adapter names two functions. ``eligible(*args, **kwargs)`` gets the call's arguments (the layer
first) and returns ``None``, or the reason code for which the stock code must run.
``fast(*args, **kwargs)`` computes the same result with our kernels; it may still raise
:class:`Unsupported`, before it draws random numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import threading
import time
import types
import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch

from gnn_backend import verify
from gnn_backend.config import get_config
from gnn_backend.errors import (
    InvalidArgument,
    KernelCompileError,
    StrictFallbackError,
    Unsupported,
)
from gnn_backend.patching import STOCK, Patch, registry, stock
from gnn_backend.profile import record_call, wants_synchronize
from gnn_backend.reasons import REASONS

Eligible = Callable[..., "str | None"]
Observer = Callable[[str, Any, bool, "str | None"], None]

REMEMBERED = 4096  # decisions kept for one symbol
_local = threading.local()
_observers: list[Observer] = []
_warned: set[tuple[str, str]] = set()


@dataclasses.dataclass(eq=False)
class Dispatcher:
    """Makes replacements of a host function that dispatch between the fused and the stock code.

    Each function may be given as ``"module:name"``; it is imported once the host is.

    Attributes
    ----------
    symbol : str
        ``host.layer``, the name in profiles and messages.
    eligible : callable or str
        ``(*args, **kwargs) -> reason code or None``.
    fast : callable or str
        ``(*args, **kwargs) -> result``, in the form of the stock code's result.
    signature : callable, str or None
        ``(*args, **kwargs) -> hashable or None``. Calls of equal signature share one decision.
    saves : callable, str or None
        ``(*args, **kwargs) -> int``: bytes of edge-wise intermediates that the stock code holds.
    static : callable, str or None
        ``(layer) -> reason code or None``: what is known before any call, for ``explain``.
    switch : str or None
        Symbol of the patch whose mode this follows, where that is not ``symbol``.
    """

    symbol: str
    eligible: Eligible | str
    fast: Callable[..., Any] | str
    signature: Callable[..., Hashable] | str | None = None
    saves: Callable[..., int] | str | None = None
    static: Callable[[Any], str | None] | str | None = None
    switch: str | None = None

    def __post_init__(self) -> None:
        self._decisions: dict[Hashable, str | None] = {}
        self._resolved = False

    def resolve(self) -> None:
        """Import the functions that are given by name."""
        if self._resolved:
            return
        for field in ("eligible", "fast", "signature", "saves", "static"):
            value = getattr(self, field)
            if isinstance(value, str):
                module, name = value.split(":")
                setattr(self, field, getattr(importlib.import_module(module), name))
        self._resolved = True

    def __call__(self, original: Callable[..., Any], mode: str | None = None) -> Any:
        """Return the replacement of `original`.

        Parameters
        ----------
        original : callable
            The host's function.
        mode : str or None
            Of a layer that is accelerated by itself: ``auto``, ``strict`` or ``verify``; ``None``
            follows ``enable``. See :func:`active_mode`.
        """
        original = stock(original)
        symbol, traced, call = self.switch or self.symbol, self._traced, self._call
        compiling, bypasses, active = torch.compiler.is_compiling, bypassed, active_mode

        # Names of this module must be closed over here: the function gets the host's globals.
        def replacement(*args: Any, **kwargs: Any) -> Any:
            if compiling():
                return traced(original, mode, args, kwargs)
            current = None if bypasses() else active(symbol, mode)
            if current is None:
                return original(*args, **kwargs)
            return call(original, current, args, kwargs)

        return disguised(replacement, original)

    def _traced(self, original: Any, mode: str | None, args: Any, kwargs: Any) -> Any:
        """The call as torch.compile sees it: no locks, no counters, no clock, no verification."""
        current = active_mode(self.switch or self.symbol, mode)
        if current is None:
            return original(*args, **kwargs)
        reason = self.eligible(*args, **kwargs)  # type: ignore[operator]
        if reason is None:
            try:
                return self.fast(*args, **kwargs)  # type: ignore[operator]
            except Unsupported as error:
                reason = error.reason
        if current == "strict":
            raise StrictFallbackError(self._refusal(reason))
        return original(*args, **kwargs)

    def _call(self, original: Any, mode: str, args: Any, kwargs: Any) -> Any:
        if not self._resolved:
            self.resolve()
        if getattr(_local, "lenient", 0):
            mode = "auto"
        start = _clock()
        ours: InvalidArgument | None = None
        key = reason = None
        try:
            if self.signature:
                key = self.signature(*args, **kwargs)  # type: ignore[operator]
            if key is None:
                reason = self.eligible(*args, **kwargs)  # type: ignore[operator]
            else:
                reason = self._decide(key, args, kwargs)
            if reason is None:
                if mode == "verify":
                    result = self._run_both(original, args, kwargs)
                else:
                    result = self.fast(*args, **kwargs)  # type: ignore[operator]
                self._record(True, None, start, args, kwargs)
                return result
        except Unsupported as error:
            reason = error.reason
            self._remember(key, reason)
        except KernelCompileError as error:
            if mode != "auto":
                raise
            reason = "compile-failed"
            self._remember(key, reason)
            _warn_once(self.symbol, str(error))
        except InvalidArgument as error:
            ours = error
        except TypeError:
            if _fits(original, args, kwargs):
                raise
            return original(*args, **kwargs)  # raises, and names the host's function
        if ours is not None:
            try:
                original(*args, **kwargs)
            except Exception as error:  # the stock error, which may say less than ours
                raise error from ours
            raise ours
        return self._fall_back(original, mode, str(reason), args, kwargs)

    def _run_both(self, original: Any, args: Any, kwargs: Any) -> Any:
        fast: Any = self.fast
        return verify.run_both(self.symbol, bypassing(original), fast, args, kwargs)

    def _decide(self, key: Hashable, args: Any, kwargs: Any) -> str | None:
        if key in self._decisions:
            return self._decisions[key]
        reason = self.eligible(*args, **kwargs)  # type: ignore[operator]
        self._remember(key, reason)
        return reason

    def _remember(self, key: Hashable | None, reason: str | None) -> None:
        if key is not None:
            if len(self._decisions) >= REMEMBERED:
                self._decisions.clear()
            self._decisions[key] = reason

    def _fall_back(self, original: Any, mode: str, reason: str, args: Any, kwargs: Any) -> Any:
        if mode == "strict":
            self._observe(args, False, reason)
            raise StrictFallbackError(self._refusal(reason))
        start = _clock()
        result = original(*args, **kwargs)
        self._record(False, reason, start, args, kwargs)
        return result

    def _refusal(self, reason: str) -> str:
        why = REASONS.get(reason, "no explanation is registered.")
        return (
            f"{self.symbol} would run the stock code (reason {reason!r}): {why} "
            "Mode 'auto' lets the stock code run."
        )

    def _record(
        self, accelerated: bool, reason: str | None, start: float, args: Any, kwargs: Any
    ) -> None:
        saved = self.saves(*args, **kwargs) if accelerated and self.saves else 0  # type: ignore[operator]
        record_call(self.symbol, accelerated, reason, _clock() - start, saved)
        if _observers:
            self._observe(args, accelerated, reason)

    def _observe(self, args: Any, accelerated: bool, reason: str | None) -> None:
        for observer in list(_observers):
            observer(self.symbol, args[0] if args else None, accelerated, reason)


def _fits(function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether the arguments fit the function's signature."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def dispatch(
    symbol: str,
    original: Callable[..., Any],
    eligible: Eligible,
    fast: Callable[..., Any],
    *,
    mode: str | None = None,
    signature: Callable[..., Hashable] | None = None,
    saves: Callable[..., int] | None = None,
) -> Any:
    """Return a replacement of `original` that runs `fast` where `eligible` allows it.

    See :class:`Dispatcher` for the parameters. Give `mode` for code that is accelerated whether
    or not ``enable()`` was called, such as a ready-made subclass.
    """
    return Dispatcher(symbol, eligible, fast, signature, saves)(original, mode)


def layer_patch(
    host: str,
    module: str,
    layer: str,
    *,
    eligible: Eligible | str,
    fast: Callable[..., Any] | str,
    signature: Callable[..., Hashable] | str | None = None,
    saves: Callable[..., int] | str | None = None,
    static: Callable[[Any], str | None] | str | None = None,
    method: str = "forward",
) -> Patch:
    """Describe the usual patch: the ``forward`` of the layer class ``module.layer``."""
    dispatcher = Dispatcher(f"{host}.{layer}", eligible, fast, signature, saves, static)
    return Patch(host, module, f"{layer}.{method}", layer, dispatcher)


def disguised(replacement: Any, original: Callable[..., Any]) -> Any:
    """Give `replacement` the name, signature and, for TorchScript's sake, globals of `original`.

    TorchScript compiles the source that ``__wrapped__`` leads to, and so the stock code; the
    names in it are looked up in the globals of the function that it was given.
    """
    names = getattr(original, "__globals__", replacement.__globals__)
    closure = replacement.__closure__
    function = types.FunctionType(replacement.__code__, names, closure=closure)
    functools.update_wrapper(function, original)
    setattr(function, STOCK, original)
    return function


def active_mode(symbol: str, own: str | None = None) -> str | None:
    """Return the mode in force for `symbol`, or ``None`` where the stock code is to run.

    `own` is the mode of a layer that is accelerated by itself. Only a ``disabled()`` block turns
    such a layer off, and an enclosing ``strict`` or ``verify`` takes the place of its own mode.
    """
    state = registry.state
    enclosing = state.mode if state is not None and symbol in state.symbols else None
    if own is None:
        return enclosing
    if registry.stock_only:
        return None
    if enclosing is None or enclosing == "auto":
        return get_config().mode if own == "auto" else own
    return enclosing


def bypassed() -> bool:
    """Whether this thread is inside :func:`bypass`."""
    return getattr(_local, "bypass", 0) > 0


def bypass() -> contextlib.AbstractContextManager[None]:
    """Run the stock code in this thread inside a ``with`` block, as the reference of a check."""
    return _raised("bypass")


def lenient() -> contextlib.AbstractContextManager[None]:
    """Take every mode for ``auto`` in this thread inside a ``with`` block, for a dry run."""
    return _raised("lenient")


@contextlib.contextmanager
def _raised(name: str) -> Iterator[None]:
    setattr(_local, name, getattr(_local, name, 0) + 1)
    try:
        yield
    finally:
        setattr(_local, name, getattr(_local, name) - 1)


def bypassing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `original` so that nothing it calls is accelerated either."""

    @functools.wraps(original)
    def reference(*args: Any, **kwargs: Any) -> Any:
        with bypass():
            return original(*args, **kwargs)

    return reference


@contextlib.contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call ``observer(symbol, layer, accelerated, reason)`` for each dispatched call."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def _clock() -> float:
    if wants_synchronize() and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def _warn_once(symbol: str, message: str) -> None:
    if (symbol, message) not in _warned:
        _warned.add((symbol, message))
        warnings.warn(f"{symbol} runs the stock code, a kernel did not compile: {message}",
                      RuntimeWarning, stacklevel=4)  # fmt: skip
