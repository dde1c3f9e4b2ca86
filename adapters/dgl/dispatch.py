"""Dispatch for DGL's layers: one graph break under ``torch.compile``.

A DGLGraph is a handle into a C library, which Dynamo cannot trace. Left to it, each call into DGL
would break the graph and its Python around would be compiled in pieces, so the whole layer runs
outside of the compiled graph instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gnn_backend.dispatch import Dispatcher, active_mode, bypassed

_outside: list[Callable[..., Any]] = []


class DGLDispatcher(Dispatcher):
    """A :class:`gnn_backend.dispatch.Dispatcher` that Dynamo does not look into."""

    def _traced(self, original: Any, mode: str | None, args: Any, kwargs: Any) -> Any:
        if not _outside:  # made here, since importing Dynamo takes a second
            _outside.append(torch.compiler.disable(_dispatch))
        return _outside[0](self, original, mode, args, kwargs)


def _dispatch(
    dispatcher: DGLDispatcher, original: Any, mode: str | None, args: Any, kwargs: Any
) -> Any:
    current = None if bypassed() else active_mode(dispatcher.symbol, mode)
    if current is None:
        return original(*args, **kwargs)
    return dispatcher._call(original, current, args, kwargs)
