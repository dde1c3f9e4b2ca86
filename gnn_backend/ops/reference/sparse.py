"""Products, sums and masks of weighted sparse matrices, given and returned as edge lists."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Matrix = tuple[Tensor, Tensor, Tensor]
"""Rows [E], columns [E] and weights [E]."""


def _coo(matrix: Matrix, shape: tuple[int, int]) -> Tensor:
    rows, columns, weights = matrix
    return torch.sparse_coo_tensor(
        torch.stack([rows.long(), columns.long()]), weights, shape, check_invariants=False
    )


def _parts(matrix: Tensor) -> Matrix:
    matrix = matrix.coalesce()
    rows, columns = matrix.indices()
    return rows, columns, matrix.values()


def csr_matmul(a: Matrix, b: Matrix, sizes: tuple[int, int, int]) -> Matrix:
    """Product of ``a`` [n, k] and ``b`` [k, m], for ``sizes`` (n, k, m); sorted by row."""
    n, k, m = sizes
    return _parts(torch.sparse.mm(_coo(a, (n, k)).coalesce(), _coo(b, (k, m)).coalesce()))


def csr_sum(matrices: Sequence[Matrix], shape: tuple[int, int]) -> Matrix:
    """Sum of matrices of one shape; sorted by row."""
    rows, columns, weights = (torch.cat(parts) for parts in zip(*matrices, strict=True))
    return _parts(_coo((rows, columns, weights), shape))


def csr_mask(a: Matrix, rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> Tensor:
    """Weights of ``a`` at given places [E]; 0 where it has no entry."""
    a_rows, a_columns, weights = _parts(_coo(a, shape))
    width = max(shape[1], 1)
    keys = a_rows * width + a_columns
    wanted = rows.long() * width + columns.long()
    if keys.numel() == 0:
        return weights.new_zeros(wanted.shape)
    at = torch.searchsorted(keys, wanted).clamp(max=keys.numel() - 1)
    return torch.where(keys[at] == wanted, weights[at], 0)
