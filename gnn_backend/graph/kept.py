"""What is built once and kept: tensors and things made of them, by a key."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gnn_backend.graph.graph import Graph

T = TypeVar("T")


class Kept:
    """A store whose entries are made at the first use, by one thread."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The entry of ``key``, or what ``make`` returns, which is then kept."""
        if key not in self._made:
            with self._lock:
                if key not in self._made:
                    # Else what a model keeps from an evaluation could not be trained on.
                    with torch.inference_mode(False), torch.no_grad():
                        self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor among the entries."""
        for entry in list(self._made.values()):
            yield from _tensors(entry)


def _tensors(entry: Any) -> Iterator[Tensor]:
    if isinstance(entry, Tensor):
        yield entry
    elif dataclasses.is_dataclass(entry):
        for field in dataclasses.fields(entry):
            yield from _tensors(getattr(entry, field.name))
    elif isinstance(entry, tuple):
        for part in entry:
            yield from _tensors(part)


def nbytes(tensors: list[Tensor]) -> int:
    """Bytes of memory behind tensors, each memory once."""
    spaces = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(spaces.values())


def kept_beside(
    graph: Graph,
    name: str,
    tensors: Sequence[Tensor | None],
    rest: Hashable,
    make: Callable[[], T],
) -> T:
    """What was made of a graph and these tensors, kept with the graph.

    Until the graph or one of the tensors is freed, or a tensor is changed in place. Of tensors made
    in inference mode, whose changes leave no trace, it is made anew each time.

    Parameters
    ----------
    graph : Graph
    name : str
        Among the graph's ``plans``.
    tensors : sequence of Tensor or None
    rest : hashable
        What else it is made of.
    make : callable
        Its result must not hold the graph.
    """
    given = [t for t in tensors if t is not None]
    if any(not isinstance(t, Tensor) or t.is_inference() for t in given):
        return make()
    kept: dict[Hashable, _Entry[T]] = graph.plans.setdefault(name, {})
    key = (*map(id, tensors), rest)
    versions = tuple(t._version for t in given)
    found = kept.get(key)
    if found is not None and found.is_of(given, versions):
        return found.made
    made = make()
    owner = weakref.ref(graph)  # the entry must not keep what it is kept with

    def forget(_: object) -> None:
        holder = owner()
        if holder is not None:
            holder.plans.get(name, {}).pop(key, None)

    kept[key] = _Entry(made, versions, tuple(weakref.ref(t, forget) for t in given))
    return made


@dataclasses.dataclass(frozen=True)
class _Entry(Generic[T]):
    made: T
    versions: tuple[int, ...]
    tensors: tuple[weakref.ref[Tensor], ...]

    def is_of(self, given: list[Tensor], versions: tuple[int, ...]) -> bool:
        same = (ref() is tensor for ref, tensor in zip(self.tensors, given, strict=True))
        return versions == self.versions and all(same)

    def workspace_bytes(self) -> int:
        """What the graph counts as held with it."""
        held = getattr(self.made, "workspace_bytes", None)
        return int(held()) if callable(held) else 0
