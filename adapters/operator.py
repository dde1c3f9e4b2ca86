"""A patch of an operator that stays the host's own affair where there is no kernel for it."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from gnn_backend.dispatch import Dispatcher, bypassed, disguised
from gnn_backend.profile import count_host_operator


def _no_reason(*args: Any, **kwargs: Any) -> None:
    """Calls that are ready have no reason to fall back."""


@dataclasses.dataclass(eq=False)
class Operator:
    """Makes the replacement of a host's operator: dispatched where ready, else the host's own.

    Calls that are not ready are no fallbacks, for no layer fell back; the profile lists them among
    the operators that the host answered itself.

    Attributes
    ----------
    symbol : str
        ``host.name``.
    module : str
        Where the two functions are; imported at the first call.
    ready : str
        Name of ``(*args, **kwargs) -> bool``: whether there is a kernel for a call.
    fast : str
        Name of ``(*args, **kwargs) -> result``.
    counts : bool
        Whether the calls that are left to the host are counted; not those that only lead to others.
    """

    symbol: str
    module: str
    ready: str
    fast: str
    counts: bool = True

    def __call__(self, original: Callable[..., Any]) -> Any:
        """Return the replacement of ``original``."""
        fast = f"{self.module}:{self.fast}"
        dispatched = Dispatcher(self.symbol, _no_reason, fast)(original)
        is_ready, own = self._is_ready, self.symbol
        compiling, bypasses = torch.compiler.is_compiling, bypassed
        count = count_host_operator if self.counts else _no_reason

        # Names of this module must be closed over here: the function gets the host's globals.
        def replacement(*args: Any, **kwargs: Any) -> Any:
            if compiling() or bypasses():
                return original(*args, **kwargs)
            if is_ready(args, kwargs):
                return dispatched(*args, **kwargs)
            count(own)
            return original(*args, **kwargs)

        return disguised(replacement, original)

    @functools.cached_property
    def _judge(self) -> Callable[..., bool]:
        judge: Callable[..., bool] = getattr(importlib.import_module(self.module), self.ready)
        return judge

    def _is_ready(self, args: Any, kwargs: Any) -> bool:
        try:
            return bool(self._judge(*args, **kwargs))
        except (TypeError, IndexError, RuntimeError, ValueError):  # the host names what is wrong
            return False
