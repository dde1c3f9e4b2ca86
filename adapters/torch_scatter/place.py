"""Where each value of a tensor goes: an index or offsets along one dimension, as lists of rows.

A source [*, E, *] with dimension ``dim`` of size E is a list of B * E rows of K values, and the
result [*, N, *] a list of B * G rows, B the product of the sizes before ``dim``. Of offsets G is
N + 1: in each block one row more takes what lies in no segment. An index that differs within a row
has no such form; torch's own operations take it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
from torch import Tensor

from gnn_backend.adapters.torch_scatter.cache import Known, known
from gnn_backend.errors import Unsupported, invalid
from gnn_backend.ops.groups import Groups
from gnn_backend.runtime.launch import sparse_engine


def has_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the segment kernels run on tensors of this kind."""
    if torch.compiler.is_compiling():
        return False
    try:
        sparse_engine(device, dtype)
    except Unsupported:
        return False
    return True


def capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being recorded, in which nothing may be made that is to stay."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def dimension(src: Tensor, dim: int) -> int:
    """``dim`` counted from the first.

    Raises
    ------
    InvalidArgument
        There is no such dimension.
    """
    if not -src.dim() <= dim < src.dim():
        raise invalid("dim", "out of range", dim, f"{-src.dim()} to {src.dim() - 1}")
    return dim % src.dim()


def check_integers(name: str, index: Tensor) -> None:
    """Refuse what is no index."""
    if not isinstance(index, Tensor) or index.dtype not in (torch.int64, torch.int32):
        raise invalid(
            name, "no index", getattr(index, "dtype", type(index).__name__), "torch.int64"
        )


def broadcast(index: Tensor, src: Tensor, dim: int) -> Tensor:
    """Expand an index to the shape of ``src``: one dimension lies along ``dim``, others first."""
    if index.dim() == 1:
        index = index.view((1,) * dim + (-1,))
    return index.view(index.shape + (1,) * (src.dim() - index.dim())).expand(src.shape)


class Place:
    """Where the values of ``src`` go.

    Attributes
    ----------
    shape : torch.Size
        Of the source.
    dim, count : int
        The dimension, and its size N in the result.
    rows : int
        The size of the result with the row of nobody, if there is one.
    groups : Groups or None
        Of the lists of rows; None where torch's operations are to answer.
    """

    def __init__(
        self, shape: torch.Size, dim: int, count: int, index: Tensor | None, groups: Groups | None,
        spare: int = 0,
    ) -> None:  # fmt: skip
        self.shape, self.dim, self.count = shape, dim, count
        self._index, self.groups, self.rows = index, groups, count + spare
        self.blocks, self.size = math.prod(shape[:dim]), shape[dim]
        self.width = math.prod(shape[dim + 1 :])

    @property
    def index(self) -> Tensor:
        """The row of the result for every value of the source, int64, expanded to its shape."""
        if self._index is None:
            assert self.groups is not None
            rows = self.groups.group_of().long() % self.rows
            front = self.shape[: self.dim + 1]
            self._index = rows.view(front + (1,) * (len(self.shape) - len(front)))
            self._index = self._index.expand(self.shape)
        return self._index

    def on_groups(self, src: Tensor) -> bool:
        """Whether ``src`` is reduced over groups, by kernels or by torch on the CPU."""
        if self.groups is None or not src.is_floating_point() or torch.compiler.is_compiling():
            return False
        return src.device.type == "cpu" or has_kernels(src.device, src.dtype)

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the result."""
        return (*self.shape[: self.dim], self.count, *self.shape[self.dim + 1 :])

    def listed(self, src: Tensor) -> Tensor:
        """The source as a list of rows [B * E, K]."""
        return src.reshape(self.blocks * self.size, self.width)

    def unlisted(self, rows: Tensor) -> Tensor:
        """The opposite of :meth:`listed`."""
        return rows.view(self.shape)

    def nodes(self, out: Tensor) -> Tensor:
        """A result as a list of rows [B * G, K]; rows of nobody are 0."""
        out = out.reshape(self.blocks, self.count, self.width)
        if self.rows > self.count:
            out = torch.nn.functional.pad(out, (0, 0, 0, self.rows - self.count))
        return out.reshape(-1, self.width)

    def of_nodes(self, rows: Tensor) -> Tensor:
        """The opposite of :meth:`nodes`."""
        out = rows.view(self.blocks, self.rows, -1)[:, : self.count]
        return out.reshape(self.result)


# ---------------------------------------------------------------------- an index


def keys_of(index: Tensor, dim: int) -> Tensor | None:
    """The index of rows [*, E] where all values of a row go the same way, a view; else None."""
    behind = range(dim + 1, index.dim())
    if any(index.stride(d) != 0 and index.shape[d] != 1 for d in behind):
        return None
    for _ in behind:
        index = index.select(-1, 0)
    return index


def place_of(
    src: Tensor,
    index: Tensor,
    dim: int,
    *,
    out: Tensor | None = None,
    dim_size: int | None = None,
    eager: bool = False,
    ascending: bool = False,
) -> Place:
    """Find where the values of ``src`` go by an index that broadcasts.

    Parameters
    ----------
    src, index : Tensor
    dim : int
    out : Tensor, optional
        Its size counts where it is given.
    dim_size : int, optional
        Size of the result; by default one more than the largest index, which costs a copy to the
        host the first time.
    eager : bool
        Sort an index that is not sorted at its first use already, not at the second.
    ascending : bool
        The caller promises that the index is sorted.

    Raises
    ------
    InvalidArgument
        The index is of the wrong dtype, or there is no such dimension.
    RuntimeError
        From torch, where the index does not broadcast.
    """
    check_integers("index", index)
    dim = dimension(src, dim)
    full = broadcast(index, src, dim)
    plain = src.numel() == 0 or index.device != src.device
    keys = None if plain else keys_of(full, dim)
    facts = Known() if keys is None else known(keys)
    if out is not None:
        dim_size = out.shape[dim]
    count = _size(facts, index) if dim_size is None else int(dim_size)
    groups = None
    if keys is not None:
        groups = _groups(
            facts, keys, count, src.dtype, src.numel() > keys.numel(), eager, ascending
        )
    return Place(src.shape, dim, count, full.long(), groups)


def _size(facts: Known, index: Tensor) -> int:
    """One more than the largest index; on CUDA one copy tells whether it is sorted as well."""
    if facts.size is None:
        if index.numel() == 0:
            facts.size = 0
        elif index.device.type == "cuda" and facts.ascending is None:
            top, falls = torch.stack([index.max(), _falls(index).any()]).tolist()
            facts.size, facts.ascending = top + 1, not falls
        else:
            facts.size = int(index.max()) + 1
    return facts.size


def _falls(keys: Tensor) -> Tensor:
    return keys[..., 1:] < keys[..., :-1]


def _groups(
    facts: Known, keys: Tensor, count: int, dtype: torch.dtype, wide: bool, eager: bool,
    promised: bool,
) -> Groups | None:  # fmt: skip
    """Groups of rows by their keys [*, E], where that pays."""
    device = keys.device
    if torch.compiler.is_compiling() or keys.numel() == 0 or count == 0:
        return None
    if not dtype.is_floating_point:
        return None
    kernels = has_kernels(device, dtype)
    if not kernels and device.type != "cpu":
        return None
    with facts.lock:
        on_cpu = device.type == "cpu"
        if on_cpu and facts.ascending is None and (wide or eager or promised or facts.uses):
            facts.ascending = not bool(_falls(keys).any())  # cheap here: nothing waits for a device
        ordered = bool(facts.ascending) or (promised and not on_cpu)
        key = (count, ordered, kernels, None if on_cpu else _stream(device))
        found = facts.groups.get(key)
        if found is not None:
            facts.groups.move_to_end(key)
            return found
        if capturing(device):
            return None
        facts.uses += 1
        # The CPU has no kernels over lists that are not sorted as they stand.
        if not ordered and not (kernels and (eager or facts.uses > 1)):
            return None
        flat = _flat(keys, count)
        blocks = keys.numel() // keys.shape[-1]
        built = Groups.from_index(flat, count * blocks, ascending=ordered)
        return facts.keep(key, built)


def _flat(keys: Tensor, count: int) -> Tensor:
    """Rows of the result for each row of the source; blocks one after the other."""
    blocks = keys.reshape(-1, keys.shape[-1])
    if blocks.shape[0] == 1:
        return blocks[0]
    torch._assert_async(((blocks >= 0) & (blocks < count)).all(), _range(count))
    shift = torch.arange(blocks.shape[0], device=keys.device, dtype=torch.int64) * count
    return (blocks.long() + shift[:, None]).view(-1)


def _range(count: int) -> str:
    return f"index out of range, expected values from 0 to {count - 1}"


def _stream(device: torch.device) -> Hashable:
    """What was made on another stream may not be there yet on this one."""
    return torch.cuda.current_stream(device).cuda_stream


# ---------------------------------------------------------------------- offsets


def segments_of(shape: torch.Size, indptr: Tensor) -> Place:
    """Where values of a source of this shape go by offsets along the last dimension of ``indptr``.

    Raises
    ------
    InvalidArgument
        The offsets are of the wrong dtype or have more dimensions than the source.
    RuntimeError
        From torch, where the offsets do not broadcast.
    """
    check_integers("indptr", indptr)
    if not 0 < indptr.dim() <= len(shape):
        raise invalid("indptr", "wrong number of dimensions", indptr.dim(), f"1 to {len(shape)}")
    dim = indptr.dim() - 1
    count = max(0, indptr.shape[-1] - 1)
    if indptr.shape[-1] == 0 or math.prod(shape) == 0:
        nobody = torch.full((), count, device=indptr.device).expand(shape)
        return Place(shape, dim, count, nobody, None, spare=1)
    wide = indptr.expand(*shape[:dim], -1)
    facts, size = known(wide, "offsets"), shape[dim]
    cuda = indptr.device.type == "cuda"
    key = (size, _stream(indptr.device) if cuda else None)
    with facts.lock:
        groups = facts.groups.get(key)
        if groups is None:
            blocks = wide.reshape(-1, count + 1)
            shift = torch.arange(blocks.shape[0], device=indptr.device)[:, None] * size
            starts = (blocks.clamp(0, size) + shift).view(-1)
            end = starts.new_full((1,), blocks.shape[0] * size)
            groups = Groups.from_offsets(torch.cat([starts, end]), int(math.prod(shape[: dim + 1])))
            if not capturing(indptr.device) and not torch.compiler.is_compiling():
                facts.keep(key, groups)
    return Place(shape, dim, count, None, groups, spare=1)


def last_offset(indptr: Tensor) -> int:
    """The last value of the offsets, copied to the host once."""
    facts = known(indptr, "offsets")
    if facts.size is None:
        facts.size = int(indptr.reshape(-1)[-1])
    return facts.size
