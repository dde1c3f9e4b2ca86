"""Products with one weight matrix for each segment of rows, or for each row."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.ops.reference.segment import scatter_add


def segment_mm(a: Tensor, weight: Tensor, lengths: Tensor, *, transposed: bool = False) -> Tensor:
    """Multiply consecutive rows by the matrix of their segment.

    Parameters
    ----------
    a : Tensor [N, I]
    weight : Tensor [R, I, O], or [R, O, I] if ``transposed``
    lengths : integer [R]
        Rows of each segment; a tensor on the CPU saves a wait for the device.
    transposed : bool
        Multiply by the transposed matrices.

    Returns
    -------
    Tensor [N, O]
    """
    matrices = weight.transpose(1, 2) if transposed else weight
    parts = a.split(lengths.tolist())
    return torch.cat([part @ matrix for part, matrix in zip(parts, matrices, strict=True)])


def segment_mm_backward_weight(a: Tensor, grad: Tensor, lengths: Tensor) -> Tensor:
    """Gradient [R, I, O] towards the matrices, from ``a`` [N, I] and the gradient [N, O]."""
    sizes = lengths.tolist()
    pairs = zip(a.split(sizes), grad.split(sizes), strict=True)
    return torch.stack([rows.t() @ grads for rows, grads in pairs])


def gather_mm(a: Tensor, weight: Tensor, idx_a: Tensor | None, idx_b: Tensor) -> Tensor:
    """Multiply row ``idx_a[i]`` of ``a`` [N, I] (or row i) by ``weight[idx_b[i]]`` [I, O]."""
    rows = a if idx_a is None else a[idx_a.long()]
    out = torch.empty((rows.shape[0], weight.shape[2]), dtype=a.dtype, device=a.device)
    for matrix, chosen in _groups(idx_b):
        out[chosen] = rows[chosen] @ weight[matrix]
    return out


def gather_mm_scatter(
    a: Tensor,
    b: Tensor,
    num_rows: int,
    idx_a: Tensor | None,
    idx_b: Tensor | None,
    idx_c: Tensor | None,
) -> Tensor:
    """Products of gathered rows, added up by ``idx_c``.

    With ``b`` [R, I, O] row i is ``a[idx_a[i]] @ b[idx_b[i]]``, added to row ``idx_c[i]`` of the
    result [num_rows, O] (row i without ``idx_c``). With ``b`` [N, O] it is the outer product of row
    i of ``a`` and of ``b``, added to matrix ``idx_c[i]`` of the result [num_rows, I, O].
    """
    rows = a if idx_a is None else a[idx_a.long()]
    if b.dim() == 3:
        assert idx_b is not None
        products = gather_mm(rows, b, None, idx_b)
        return products if idx_c is None else scatter_add(products, idx_c, num_rows)
    others = b if idx_b is None else b[idx_b.long()]
    assert idx_c is not None
    out = a.new_zeros(num_rows, a.shape[1], b.shape[1])
    for matrix, chosen in _groups(idx_c):
        out[matrix] = rows[chosen].t() @ others[chosen]
    return out


def _groups(index: Tensor) -> list[tuple[int, Tensor]]:
    """Each value of an index, with the positions that have it."""
    order = torch.argsort(index, stable=True)
    values, counts = torch.unique_consecutive(index[order], return_counts=True)
    return list(zip(values.tolist(), order.split(counts.tolist()), strict=True))


def typed_linear(
    x: Tensor,
    weight: Tensor,
    types: Tensor,
    *,
    rows: Tensor | None = None,
    out_rows: Tensor | None = None,
    num_out: int | None = None,
    transposed: bool = False,
    scale: Tensor | None = None,
) -> Tensor:
    """``out[out_rows[i]] = scale[i] * x[rows[i]] @ weight[types[i]]``, differentiable.

    Parameters
    ----------
    x : Tensor [N, I] or [N, H, I]
    weight : Tensor [T, I, O] or [T, H, I, O]
        With ``transposed`` the last two dimensions are exchanged.
    types : integer Tensor [M]
        Of each place.
    rows, out_rows : integer Tensors [M], optional
    num_out : int, optional
    transposed : bool
    scale : Tensor [M], optional

    Returns
    -------
    Tensor [num_out, O] or [num_out, H, O]
        Rows that no place has are 0.
    """
    matrices = (weight.transpose(-1, -2) if transposed else weight)[types.long()]
    if x.dim() == matrices.dim():  # heads that share a weight
        matrices = matrices.unsqueeze(1)
    left = x if rows is None else x[rows.long()]
    out = (left.unsqueeze(-2) @ matrices).squeeze(-2)
    if scale is not None:
        out = out * scale.to(out.dtype).view(-1, *(1,) * (out.dim() - 1))
    if out_rows is None:
        return out
    empty = out.new_zeros(num_out or len(out), *out.shape[1:])
    return empty.index_copy(0, out_rows.long(), out)


def typed_weight_grad(
    x: Tensor,
    grad: Tensor,
    types: Tensor,
    num_types: int,
    *,
    x_rows: Tensor | None = None,
    grad_rows: Tensor | None = None,
    scale: Tensor | None = None,
    heads: bool = False,
) -> Tensor:
    """For each type the sum of ``scale[i] * outer(x[x_rows[i]], grad[grad_rows[i]])``.

    ``x`` [N, I] or [N, H, I] and ``grad`` [K, O] or [K, H, O] give [T, I, O]; with ``heads``, which
    are else summed as well, [T, H, I, O].
    """
    left = x if x_rows is None else x[x_rows.long()]
    right = grad if grad_rows is None else grad[grad_rows.long()]
    if scale is not None:
        left = left * scale.to(left.dtype).view(-1, *(1,) * (left.dim() - 1))
    products = left.unsqueeze(-1) * right.unsqueeze(-2)
    if products.dim() == 4 and not heads:
        products = products.sum(1)
    out = products.new_zeros(num_types, *products.shape[1:])
    return out.index_add(0, types.long(), products)
