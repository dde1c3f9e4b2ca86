"""What torch_sparse makes of its own reductions, with the library and with ours in its place.

As a program it writes its results: ``python -m tests.torch_scatter_library.sparse OUT HOW``. HOW is
``library``, ``patched`` (by the emulated kernels), or ``provided``, where torch_scatter is hidden.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

ROWS, COLUMNS, ENTRIES = 30, 20, 150


def results() -> dict[str, Tensor]:
    """Products, reductions, sums of matrices, coalescing; with the gradients of the values."""
    import torch_sparse
    from torch_sparse import SparseTensor

    generator = torch.Generator().manual_seed(0)
    places = torch.randperm(ROWS * COLUMNS, generator=generator)[:ENTRIES]
    row, col = places // COLUMNS, places % COLUMNS
    value = torch.randn(ENTRIES, generator=generator).requires_grad_()
    dense = torch.randn(COLUMNS, 8, generator=generator)
    matrix = SparseTensor(row=row, col=col, value=value, sparse_sizes=(ROWS, COLUMNS))
    found: dict[str, Tensor] = {}

    def keep(name: str, result: Tensor) -> None:
        found[name] = result.detach()
        if result.requires_grad:
            total = result.square().sum()
            (found[f"{name}, gradient"],) = torch.autograd.grad(total, value, retain_graph=True)

    for dim in (0, 1):
        for op in ("sum", "mean", "min", "max"):
            keep(f"{op} over dimension {dim}", getattr(matrix, op)(dim))
    index = torch.stack([row, col])
    keep("spmm", torch_sparse.spmm(index, value, ROWS, COLUMNS, dense))
    for op in ("sum", "mean", "min", "max"):
        keep(f"matmul, {op}", torch_sparse.matmul(matrix, dense, reduce=op))
    twice = torch.cat([index, index.flip(1)], 1)
    for op in ("add", "mean", "min", "max"):
        values = torch.cat([value, value.flip(0)])
        keep(f"coalesce, {op}", torch_sparse.coalesce(twice, values, ROWS, COLUMNS, op)[1])
    keep("times a column", matrix.mul(torch.arange(1.0, ROWS + 1).view(-1, 1)).storage.value())
    keep("plus a column", matrix.add(torch.arange(1.0, ROWS + 1).view(-1, 1)).storage.value())
    keep("selected rows", matrix.index_select(0, torch.tensor([3, 1, 7])).to_dense())
    product = matrix.detach() @ matrix.detach().t()
    keep("product of matrices", product.to_dense())
    return found


class _Hidden:
    """Hides torch_scatter from imports."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "torch_scatter":
            raise ImportError(f"No module named {name!r}", name=name)


def main(output: str, how: str) -> None:
    """Compute in the given way and write the results."""
    import gnn_backend
    from gnn_backend import config

    calls = 0
    if how == "provided":
        sys.meta_path.insert(0, _Hidden())  # type: ignore[arg-type]
        gnn_backend.enable(provide="torch_scatter", hosts=[])
        found = results()
        import torch_scatter

        calls = int(torch_scatter.__gnn_backend__)
    elif how == "patched":
        gnn_backend.enable(hosts="torch_scatter")
        with config.override(cpu_target="emulator"), gnn_backend.profile() as record:
            found = results()
        calls = record.accelerated
    else:
        found = results()
    torch.save({"results": found, "calls": calls}, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
