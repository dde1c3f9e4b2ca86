"""What is built once and kept: tensors and things made of them, by a key."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

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
