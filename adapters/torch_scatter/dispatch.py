"""Dispatch for torch_scatter's functions: what ``out=`` and tensors on the CPU ask of it."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import torch
from torch import Tensor

from gnn_backend import verify
from gnn_backend.adapters.torch_scatter.place import why_not
from gnn_backend.dispatch import Dispatcher, bypassing
from gnn_backend.profile import count_host_operator

_NO_CUDA = -1  # the library's ``cuda_version`` where it was built without


def on_host(args: Any, kwargs: Any) -> bool:
    """Whether the source is on the CPU, where the library has kernels of its own."""
    src = args[0] if args else kwargs.get("src")
    if not isinstance(src, Tensor):
        return True  # the library says what is wrong
    return why_not(src.device, torch.float32) == "cpu-operators"


class ScatterDispatcher(Dispatcher):
    """A dispatcher that leaves tensors on the CPU to the library, and knows what is written to."""

    def _traced(self, original: Any, mode: str | None, args: Any, kwargs: Any) -> Any:
        if on_host(args, kwargs):
            return original(*args, **kwargs)
        return super()._traced(original, mode, args, kwargs)

    def _call(self, original: Any, mode: str, args: Any, kwargs: Any) -> Any:
        if on_host(args, kwargs):
            count_host_operator(self.symbol)
            return original(*args, **kwargs)
        return super()._call(original, mode, args, kwargs)

    def _run_both(self, original: Any, args: Any, kwargs: Any) -> Any:
        """Run both; the library writes to a copy of ``out``, made before ours has written to it."""
        given = dict(inspect.signature(original).bind(*args, **kwargs).arguments)
        out = given.pop("out", None)
        if not isinstance(out, Tensor):
            return super()._run_both(original, args, kwargs)
        before, fast, reference = out.detach().clone(), self.fast, bypassing(original)

        @functools.wraps(original)
        def ours(**named: Any) -> Any:
            return fast(**named, out=out)  # type: ignore[operator]

        @functools.wraps(original)
        def theirs(**named: Any) -> Any:
            return reference(**named, out=before)

        return verify.run_both(self.symbol, theirs, ours, (), given)


def eligible(*args: Any, **kwargs: Any) -> str | None:
    """The reason why a call is the library's: a device or dtype without kernels.

    A library that was built without CUDA has none either; then torch's operations answer.
    """
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    if len({t.device for t in tensors}) > 1:
        return "device-mixed"
    src = tensors[0]
    library = sys.modules.get("torch_scatter")
    if src.is_cuda and getattr(library, "cuda_version", _NO_CUDA) == _NO_CUDA:
        return None
    return why_not(src.device, src.dtype)
