"""Unions of relations that PyG gives as edge lists, kept for as long as these tensors live."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gnn_backend.adapters.stamps import is_untracked, stamp
from gnn_backend.layers.hetero.union import Union

MAX_KEPT = 4  # of those whose first relation has the same edges


class _Kept(NamedTuple):
    edges: tuple[weakref.ref[Tensor], ...]
    stamps: tuple[Any, ...]
    union: Union

    def is_of(self, edges: Sequence[Tensor]) -> bool:
        same = len(edges) == len(self.edges) and all(
            ref() is tensor for ref, tensor in zip(self.edges, edges, strict=True)
        )
        return same and tuple(map(stamp, edges)) == self.stamps


class UnionCache:
    """Unions by the edges of all their relations, weakly; safe to use from several threads."""

    def __init__(self) -> None:
        self._entries = WeakTensorKeyDictionary()
        self._lock = threading.Lock()

    def get(self, edges: Sequence[Tensor], key: Hashable, make: Callable[[], Union]) -> Union:
        """The union of these edges and this key, made now if it is not kept or an edge changed."""
        if any(map(is_untracked, edges)):
            return make()
        with self._lock:
            kept: OrderedDict[Hashable, _Kept] | None = self._entries.get(edges[0])
            if kept is None:
                kept = self._entries[edges[0]] = OrderedDict()
            found = kept.get(key)
            if found is None or not found.is_of(edges):
                refs = tuple(map(weakref.ref, edges))
                found = kept[key] = _Kept(refs, tuple(map(stamp, edges)), make())
                if len(kept) > MAX_KEPT:
                    kept.popitem(last=False)
            kept.move_to_end(key)
            return found.union

    def nbytes(self) -> int:
        """Bytes held by all unions."""
        with self._lock:
            entries = list(self._entries.values())
        return sum(kept.union.nbytes() for entry in entries for kept in list(entry.values()))

    def clear(self) -> None:
        """Forget all unions."""
        with self._lock:
            self._entries = WeakTensorKeyDictionary()


unions = UnionCache()
