"""What is known of an index, kept for as long as the user's own tensor lives.

The key is the tensor that owns the memory, held weakly: ``edge_index`` for ``edge_index[1]``, of
which every call sees a new view. Within it an index is told by its place, sizes and strides.
Whatever was edited through torch since (its version counter) is learned anew. Tensors made in
inference mode have no such counter and are not remembered.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gnn_backend.ops.groups import Groups

MAX_INDICES = 8  # of one tensor
MAX_GROUPS = 4  # of one index


class Known:
    """What was found out about one index; holds nothing of the user's.

    Attributes
    ----------
    size : int or None
        One more than its largest value (of offsets, their last value).
    ascending : bool or None
    uses : int
        Calls that would have liked it sorted.
    groups : dict
        :class:`Groups` by whatever they depend on, least recently used first.
    """

    __slots__ = ("ascending", "groups", "lock", "size", "uses")

    def __init__(self) -> None:
        self.size: int | None = None
        self.ascending: bool | None = None
        self.uses = 0
        self.groups: OrderedDict[Hashable, Groups] = OrderedDict()
        self.lock = threading.RLock()

    def keep(self, key: Hashable, groups: Groups) -> Groups:
        """Remember groups, and forget those not used for longest. The lock is held."""
        self.groups[key] = groups
        if len(self.groups) > MAX_GROUPS:
            self.groups.popitem(last=False)
        return groups


class _Owner:
    """The indices in one tensor at one state of its content."""

    __slots__ = ("indices", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.indices: OrderedDict[Hashable, Known] = OrderedDict()


_owners = WeakTensorKeyDictionary()
_lock = threading.Lock()


def known(index: Tensor, kind: str = "index") -> Known:
    """Return what is remembered of an index, or an empty record.

    Parameters
    ----------
    index : integer Tensor
        The user's, or a view of it.
    kind : str
        ``"index"`` or ``"offsets"``.
    """
    owner = index if index._base is None else index._base
    if owner.is_inference() or torch.compiler.is_compiling():
        return Known()
    place = (kind, index.dtype, index.storage_offset(), index.shape, index.stride())
    with _lock:
        entry = _owners.get(owner)
        if entry is None or entry.version != owner._version:
            entry = _owners[owner] = _Owner(owner._version)
        found = entry.indices.get(place)
        if found is None:
            found = entry.indices[place] = Known()
            if len(entry.indices) > MAX_INDICES:
                entry.indices.popitem(last=False)
        else:
            entry.indices.move_to_end(place)
        return found


def cached_bytes() -> int:
    """Bytes that sorted indices hold now."""
    with _lock:
        entries = list(_owners.values())
    held = [found for entry in entries for found in list(entry.indices.values())]
    return sum(groups.nbytes() for found in held for groups in list(found.groups.values()))


def clear_cache() -> None:
    """Forget all indices; they are sorted again when that pays."""
    global _owners
    with _lock:
        _owners = WeakTensorKeyDictionary()
