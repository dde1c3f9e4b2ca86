"""A wrapper over relations as a module of its types' features alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gnn_backend import profile
from gnn_backend.ir import steps
from gnn_backend.layers.hetero import products

SIZES = {"a": 14, "b": 9}


class Wrapped(torch.nn.Module):
    """``call(wrapper, features) -> dict``, whose results come as a list by type."""

    def __init__(
        self, wrapper: torch.nn.Module, call: Callable[[Any, list[Tensor]], dict[str, Tensor]]
    ) -> None:
        super().__init__()
        self.wrapper, self.call = wrapper, call

    def forward(self, *features: Tensor) -> list[Tensor]:
        return [out for _, out in sorted(self.call(self.wrapper, list(features)).items())]


def relations(count: int, *, square: bool = False) -> Iterator[tuple[tuple[str, str, str], Tensor]]:
    """Relations between two types: one without edges, one of a single edge, loops, duplicates."""
    generator = torch.Generator().manual_seed(5)
    names = [*SIZES]
    for r in range(count):
        source, target = names[r % 2], names[(r if square else r // 2) % 2]
        edges = {1: 0, 2: 1}.get(r, 17)
        ends = [torch.randint(SIZES[n], (edges,), generator=generator) for n in (source, target)]
        yield (source, f"r{r}", target), torch.stack(ends)


def randomized(module: torch.nn.Module) -> torch.nn.Module:
    """Biases start at 0 in many layers, where nobody would miss them."""
    torch.manual_seed(2)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:  # which runs nothing
            self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


def operations(step: Callable[[], Any], monkeypatch: Any) -> tuple[Any, Counter[str]]:
    """Kernel launches and calls of torch's operators of a step.

    A product of segments counts once: on the CPU torch multiplies one segment after the other.
    """
    counting = _Operators()

    def once(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = counting.calls.copy()
            found = function(*args, **kwargs)
            counting.calls = before + Counter([function.__name__])
            return found

        return call

    with monkeypatch.context() as patch:
        for name in ("typed_linear", "typed_weight_grad"):
            for user in (products, steps):
                patch.setattr(user, name, once(getattr(user, name)))
        with profile() as seen, counting:
            step()
    return seen.launches, counting.calls
