"""Kinds of a wrapper's layers as found before, for as long as nothing of the layers changes.

Looking at hundreds of layers takes longer than running them. What is compared instead: every
attribute of every module by identity, parameters and their dtypes and devices, and hooks.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from gnn_backend.adapters.relations import (
    Batch,
    Kind,
    Member,
    batches,
    kinds_reason,
    parameters_reason,
)
from gnn_backend.layers.projection import watched

_MAX_BATCHES = 16  # groupings of different relations, as of graphs that lack some


class Known:
    """The kinds of layers, and the state that they were found in.

    Attributes
    ----------
    convs : list of Module
    parameters : list of Parameter
        All that the layers have.
    reason : str or None
        Reason code why they do not run in batches.
    """

    def __init__(self, convs: Sequence[nn.Module], kind_of: Callable[[Any], Kind | str]) -> None:
        self.convs = list(convs)
        modules = list(dict.fromkeys(m for conv in convs for m in conv.modules()))
        attributes = [vars(module) for module in modules]
        self._hooks = [
            hooks for own in attributes for name, hooks in own.items() if name.endswith("_hooks")
        ]
        self._hooked = any(self._hooks)
        children, parameters = ([own[n] for own in attributes] for n in ("_modules", "_parameters"))
        self._dicts = [*attributes, *children, *parameters]
        self._values = list(self._now())
        self.parameters = [p for own in parameters for p in own.values() if p is not None]
        self._dtypes = self._types()
        self._kinds = [kind_of(conv) for conv in convs]
        self.reason = kinds_reason(self._kinds) or parameters_reason(self.parameters)
        self._batches: dict[Hashable, list[Batch]] = {}

    def holds(self, convs: Sequence[nn.Module]) -> bool:
        """Whether these are the layers, and in the same state."""
        if self._hooked or any(self._hooks) or watched(convs[0]):  # which sees global hooks
            return False
        return (
            len(convs) == len(self.convs)
            and all(map(operator.is_, convs, self.convs))
            and self._total() == len(self._values)
            and all(map(operator.is_, self._now(), self._values))
            and self._types() == self._dtypes
        )

    def batches(self, members: Sequence[Member]) -> list[Batch]:
        """The members, of the layers in this order and of kinds that have no reason, in groups."""
        key = tuple((member.relation, member.source, member.target) for member in members)
        found = self._batches.get(key)
        if found is None:
            if len(self._batches) >= _MAX_BATCHES:
                self._batches.clear()
            kinds = [kind for kind in self._kinds if isinstance(kind, Kind)]
            found = self._batches[key] = batches(members, kinds)
        return found

    def _now(self) -> Iterator[Any]:
        """Everything that modules hold, one after the other."""
        return itertools.chain.from_iterable(map(dict.values, self._dicts))

    def _total(self) -> int:
        return sum(map(len, self._dicts))

    def _types(self) -> list[tuple[torch.dtype, bool]]:
        """Of the parameters, which change in place when a module is moved."""
        return [(p.dtype, p.is_cuda) for p in self.parameters]


_known: WeakKeyDictionary[nn.Module, Known] = WeakKeyDictionary()


def known(
    wrapper: nn.Module, convs: Sequence[nn.Module], kind_of: Callable[[Any], Kind | str]
) -> Known:
    """Kinds of the layers ``convs`` of a wrapper, found now or before."""
    found = _known.get(wrapper)
    if found is None or not found.holds(convs):
        found = _known[wrapper] = Known(convs, kind_of)
    return found
