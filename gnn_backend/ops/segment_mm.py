"""Products of rows with one matrix a segment or a row, through torch; without autograd.

The grouped product of torch takes its segments from the device; it exists for bfloat16 on GPUs of
compute capability 9 and later. Elsewhere every segment is one product, whose length the host must
know: pass lengths in CPU memory to spare a wait for the device.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.ops.segment import scatter_add

_GROUPED_CAPABILITY = (9, 0)
_GROUPED_ALIGNMENT = 8  # values; rows start at multiples of 16 bytes


def segment_mm(a: Tensor, b: Tensor, lengths: Tensor, *, transposed: bool = False) -> Tensor:
    """Multiply each segment of rows with its own matrix.

    Parameters
    ----------
    a : Tensor [N, I]
        Segments one after the other.
    b : Tensor [R, I, O]
        With ``transposed`` [R, O, I], each matrix is transposed first.
    lengths : integer Tensor [R]
        Rows of each segment; together N. On any device; on the CPU nothing waits for the GPU.

    Returns
    -------
    Tensor [N, O]

    Raises
    ------
    InvalidArgument
        The shapes do not fit, or the lengths are not those of segments of ``a``.
    """
    if a.dim() != 2 or b.dim() != 3:
        got = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise invalid("a, b", "wrong shape", got, "[N, I] and [R, I, O]")
    if transposed:
        b = b.transpose(1, 2)
    if b.shape[1] != a.shape[1] or lengths.shape != b.shape[:1]:
        got = f"{tuple(a.shape)}, {tuple(b.shape)} and lengths {tuple(lengths.shape)}"
        raise invalid("a, b, lengths", "do not fit", got, "[N, I], [R, I, O] and [R]")
    if _grouped(a, *b.shape[1:]):
        return _grouped_mm(a.contiguous(), b, lengths)
    out = a.new_empty(a.shape[0], b.shape[2])
    for r, (begin, end) in enumerate(_segments(lengths, a.shape[0])):
        if end > begin:
            torch.mm(a[begin:end], b[r], out=out[begin:end])
    return out


def segment_mm_backward_b(a: Tensor, grad: Tensor, lengths: Tensor) -> Tensor:
    """Gradient of :func:`segment_mm` towards the matrices.

    Parameters
    ----------
    a : Tensor [N, I]
    grad : Tensor [N, O]
    lengths : integer Tensor [R]

    Returns
    -------
    Tensor [R, I, O]
        0 for segments without rows.

    Raises
    ------
    InvalidArgument
        The shapes do not fit, or the lengths are not those of segments of ``a``.
    """
    if a.dim() != 2 or grad.dim() != 2 or a.shape[0] != grad.shape[0]:
        got = f"{tuple(a.shape)} and {tuple(grad.shape)}"
        raise invalid("a, grad", "wrong shape", got, "[N, I] and [N, O]")
    if _grouped(a, a.shape[1], grad.shape[1]):
        return _grouped_mm(a.contiguous().t(), grad.contiguous(), lengths)
    out = a.new_zeros(lengths.numel(), a.shape[1], grad.shape[1])
    for r, (begin, end) in enumerate(_segments(lengths, a.shape[0])):
        if end > begin:
            torch.mm(a[begin:end].t(), grad[begin:end], out=out[r])
    return out


def gather_mm(
    a: Tensor, b: Tensor, index_a: Tensor | None = None, index_b: Tensor | None = None
) -> Tensor:
    """``out[i] = a[index_a[i]] @ b[index_b[i]]``.

    Parameters
    ----------
    a : Tensor [N, I]
    b : Tensor [R, I, O]
    index_a, index_b : integer Tensors [M], optional
        By default every row in turn.

    Returns
    -------
    Tensor [M, O]

    Raises
    ------
    InvalidArgument
        The shapes do not fit.
    """
    if index_b is None:
        rows = a if index_a is None else a[index_a.long()]
        return torch.bmm(rows.unsqueeze(1), b).squeeze(1)
    order, lengths = _sorted(index_b, b.shape[0])
    rows = a[order if index_a is None else index_a.long()[order]]
    out = a.new_empty(order.numel(), b.shape[2])
    return out.index_copy_(0, order, segment_mm(rows, b, lengths))


def gather_mm_scatter(
    a: Tensor,
    b: Tensor,
    num_rows: int,
    index_a: Tensor | None = None,
    index_b: Tensor | None = None,
    index_c: Tensor | None = None,
) -> Tensor:
    """Gradients of :func:`gather_mm`: products added up by ``index_c``.

    With ``b`` [R, I, O]: ``out[index_c[i]] += a[index_a[i]] @ b[index_b[i]]``, [num_rows, O]. With
    ``b`` [M, O]: ``out[index_c[i]] += outer(a[index_a[i]], b[index_b[i]])``, [num_rows, I, O].

    Parameters
    ----------
    a : Tensor [N, I]
    b : Tensor
    num_rows : int
        Rows of the result.
    index_a, index_b, index_c : integer Tensors [M], optional
        By default every row in turn.

    Returns
    -------
    Tensor

    Raises
    ------
    InvalidArgument
        The shapes do not fit.
    """
    if b.dim() == 3:
        product = gather_mm(a, b, index_a, index_b)
        return product if index_c is None else scatter_add(product, index_c, num_rows)
    if index_c is None:
        rows = a if index_a is None else a[index_a.long()]
        other = b if index_b is None else b[index_b.long()]
        return rows.unsqueeze(2) * other.unsqueeze(1)
    order, lengths = _sorted(index_c, num_rows)
    rows = a[order if index_a is None else index_a.long()[order]]
    other = b[order if index_b is None else index_b.long()[order]]
    return segment_mm_backward_b(rows, other, lengths)


def _sorted(index: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """A stable order by index, and how often each occurs; nothing waits for the device."""
    keys, order = torch.sort(index.long(), stable=True)
    bounds = torch.arange(groups + 1, device=index.device)
    return order, torch.searchsorted(keys, bounds).diff()


def _segments(lengths: Tensor, num_rows: int) -> list[tuple[int, int]]:
    """Begin and end of every segment."""
    if lengths.numel() == 1 and lengths.device.type != "cpu":
        return [(0, num_rows)]  # what else could it be
    sizes = lengths.tolist()
    if min(sizes, default=0) < 0 or sum(sizes) != num_rows:
        raise invalid("lengths", "not those of the segments", f"{len(sizes)} with sum {sum(sizes)}",
                      f"not negative, with sum {num_rows}")  # fmt: skip
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return list(itertools.pairwise(ends))


def _grouped(a: Tensor, inner: int, outer: int) -> bool:
    """Whether torch's grouped product takes these operands."""
    return (
        a.dtype == torch.bfloat16
        and a.device.type == "cuda"
        and a.shape[0] > 0
        and hasattr(torch.nn.functional, "grouped_mm")
        and torch.cuda.get_device_capability(a.device) >= _GROUPED_CAPABILITY
        and inner % _GROUPED_ALIGNMENT == outer % _GROUPED_ALIGNMENT == 0
    )


def _grouped_mm(a: Tensor, b: Tensor, lengths: Tensor) -> Tensor:
    ends = lengths.to(a.device, non_blocking=True).cumsum(0).int()
    return torch.nn.functional.grouped_mm(a, b, offs=ends)
