"""Products of rows with one matrix a segment or a row, as DGL names them; without autograd.

They are typed linears (:mod:`gnn_backend.ops.typed_linear`). Lengths in CPU memory are checked; of
those on a GPU the kernels read what they need, and nothing waits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.ops.segment import scatter_add
from gnn_backend.ops.typed_linear import Bounds, typed_linear, typed_weight_grad


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
    if b.shape[1 + transposed] != a.shape[1] or lengths.shape != b.shape[:1]:
        got = f"{tuple(a.shape)}, {tuple(b.shape)} and lengths {tuple(lengths.shape)}"
        raise invalid("a, b, lengths", "do not fit", got, "[N, I], [R, I, O] and [R]")
    return typed_linear(a, b, _bounds(lengths, a), transposed=transposed)


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
    return typed_weight_grad(a, grad, _bounds(lengths, a))


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
    order, bounds = _sorted(index_b, b.shape[0])
    rows = order if index_a is None else index_a[order]
    return typed_linear(a, b, bounds, rows=rows, out_rows=order)


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
    order, bounds = _sorted(index_c, num_rows)
    left = order if index_a is None else index_a[order]
    right = order if index_b is None else index_b[order]
    return typed_weight_grad(a, b, bounds, x_rows=left, grad_rows=right)


def _sorted(index: Tensor, groups: int) -> tuple[Tensor, Bounds]:
    """A stable order by index, and the bounds of each value in it; nothing waits for the device."""
    keys, order = torch.sort(index.long(), stable=True)
    return order, Bounds(torch.searchsorted(keys, torch.arange(groups + 1, device=index.device)))


def _bounds(lengths: Tensor, rows: Tensor) -> Bounds:
    """Bounds of segments on the device of the rows; lengths in CPU memory are checked."""
    sizes = None
    if lengths.device.type == "cpu":
        sizes = lengths.tolist()
        if min(sizes, default=0) < 0 or sum(sizes) != len(rows):
            got = f"{len(sizes)} with sum {sum(sizes)}"
            raise invalid("lengths", "not those of the segments", got,
                          f"not negative, with sum {len(rows)}")  # fmt: skip
    ends = torch.nn.functional.pad(lengths.long().cumsum(0), (1, 0))
    return Bounds(ends.to(rows.device, non_blocking=True), sizes)
