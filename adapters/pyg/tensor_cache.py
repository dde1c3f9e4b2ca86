"""What is made of tensors that PyG's users give, kept for as long as these tensors live."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gnn_backend.adapters.pyg.edges import is_untracked, stamp
from gnn_backend.layers.hetero.linear import TypeOrder
from gnn_backend.layers.hetero.union import Union

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

    def is_of(self, tensors: Sequence[Tensor]) -> bool:
        same = len(tensors) == len(self.tensors) and all(
            ref() is tensor for ref, tensor in zip(self.tensors, tensors, strict=True)
        )
        return same and tuple(map(stamp, tensors)) == self.stamps


class TensorCache(Generic[T]):
    """Things by all tensors that they are made of, weakly; safe to use from several threads."""

    def __init__(self) -> None:
        self._entries = WeakTensorKeyDictionary()
        self._lock = threading.Lock()

    def get(self, tensors: Sequence[Tensor], key: Hashable, make: Callable[[], T]) -> T:
        """What is made of these tensors and this key: now, if not before or a tensor changed."""
        if any(map(is_untracked, tensors)):
            return make()
        with self._lock:
            kept: OrderedDict[Hashable, _Kept] | None = self._entries.get(tensors[0])
            if kept is None:
                kept = self._entries[tensors[0]] = OrderedDict()
            found = kept.get(key)
            if found is None or not found.is_of(tensors):
                refs = tuple(map(weakref.ref, tensors))
                found = kept[key] = _Kept(refs, tuple(map(stamp, tensors)), make())
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


unions: TensorCache[Union] = TensorCache()  # of the edges of relations
type_orders: TensorCache[TypeOrder] = TensorCache()  # of the types of rows
