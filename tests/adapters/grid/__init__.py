"""The grid of attention layers: every layer over its arguments, one definition for every device.

Neither pytest nor a host is imported before a case is made, so ``python -m tests.gpu`` can use it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable
from typing import Any

from tests.adapters.attention import check_equals_stock
from tests.adapters.grid import dgl_layers, pyg_layers
from tests.adapters.grid.covering import each_choice, pairwise

HOSTS = {"pyg": pyg_layers, "dgl": dgl_layers}
PACKAGES = {"pyg": "torch_geometric", "dgl": "dgl"}


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer with a value for each of its arguments."""

    host: str
    layer: str
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return "-".join([self.host, self.layer, *map(_text, self.options.values())])

    def missing(self) -> str:
        """Why the case cannot run here, or an empty text."""
        package = PACKAGES[self.host]
        return "" if importlib.util.find_spec(package) else f"{package} is not installed"

    def __str__(self) -> str:
        return self.name

    def check(self, device: str = "cpu") -> None:
        """Assert that output and all gradients are the stock layer's, and that kernels ran.

        DGL's stock layers have no CUDA: theirs runs on the CPU.
        """
        host = HOSTS[self.host]
        given = host.sample(self.layer, self.options, device)
        masks = check_equals_stock(
            given.module, self.host, *given.args, reference=given.reference, **given.kwargs
        )
        assert len(masks) == host.drops(self.options), "drops where it should not, or not at all"


def _text(value: Any) -> str:
    """The same in every process: a function's own text holds its address."""
    if isinstance(value, tuple):
        return "(" + ",".join(map(_text, value)) + ")"
    return getattr(value, "__name__", str(value)).replace("torch.", "")


def _cases(choose: Callable[..., list[dict[str, Any]]]) -> list[Case]:
    return [
        Case(name, layer, row)
        for name, host in HOSTS.items()
        for layer, choices in host.CHOICES.items()
        for row in choose(choices, functools.partial(host.allowed, layer))
    ]


#: Every pair of values of two arguments of a layer occurs at least once.
PAIRWISE = _cases(pairwise)
#: Every value of every argument of a layer occurs at least once.
COVERING = _cases(each_choice)

__all__ = ["COVERING", "PAIRWISE", "Case"]
