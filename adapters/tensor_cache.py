"""What is made of tensors that users give, kept for as long as these tensors live."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gnn_backend.adapters import stamps
from gnn_backend.layers.hetero.linear import TypeOrder, order_of

MAX_KEPT = 4  # of those whose first tensor is the same


class Held(Protocol):
    """What tells how much memory it holds."""

    def nbytes(self) -> int:
        """Bytes held now."""
        ...


T = TypeVar("T", bound=Held)


class _Kept(NamedTuple):
    tensors: tuple[weakref.ref[Tensor], ...]
    stamps: tuple[Any, ...]
    made: Any

    def is_of(self, tensors: Sequence[Tensor], now: tuple[Any, ...]) -> bool:
        same = len(tensors) == len(self.tensors) and all(
            ref() is tensor for ref, tensor in zip(self.tensors, tensors, strict=True)
        )
        return same and now == self.stamps


class TensorCache(Generic[T]):
    """Things by all tensors that they are made of, weakly; safe to use from several threads.

    Parameters
    ----------
    stamp, is_untracked : callable
        State of a tensor, and whether in-place edits leave no trace in it.
    """

    def __init__(
        self,
        stamp: Callable[[Any], tuple[Any, ...]] = stamps.stamp,
        is_untracked: Callable[[Any], bool] = stamps.is_untracked,
    ) -> None:
        self._stamp, self._is_untracked = stamp, is_untracked
        self._entries = WeakTensorKeyDictionary()
        self._lock = threading.Lock()

    def get(self, tensors: Sequence[Tensor], key: Hashable, make: Callable[[], T]) -> T:
        """What is made of these tensors and this key: now, if not before or a tensor changed."""
        if any(map(self._is_untracked, tensors)):
            return make()
        with self._lock:
            kept: OrderedDict[Hashable, _Kept] | None = self._entries.get(tensors[0])
            if kept is None:
                kept = self._entries[tensors[0]] = OrderedDict()
            found, now = kept.get(key), tuple(map(self._stamp, tensors))
            if found is None or not found.is_of(tensors, now):
                found = kept[key] = _Kept(tuple(map(weakref.ref, tensors)), now, make())
                if len(kept) > MAX_KEPT:
                    kept.popitem(last=False)
            kept.move_to_end(key)
            return found.made  # type: ignore[no-any-return]

    def nbytes(self) -> int:
        """Bytes held by all of them."""
        with self._lock:
            entries = list(self._entries.values())
        return sum(kept.made.nbytes() for entry in entries for kept in list(entry.values()))

    def clear(self) -> None:
        """Forget them."""
        with self._lock:
            self._entries = WeakTensorKeyDictionary()


type_orders: TensorCache[TypeOrder] = TensorCache()


def kept_order(types: Tensor, num_types: int) -> TypeOrder:
    """Where rows of each type are, kept with their types.

    Raises
    ------
    InvalidArgument
        A type is out of range.
    """
    return type_orders.get([types], num_types, lambda: order_of(types, num_types))
