"""The functions in a form that TorchScript compiles: calls of ours, which stay the Python they are.

Code that is scripted and uses torch_scatter, as that of torch_sparse, has TorchScript compile what
it finds under these names. TorchScript reads annotations as objects, hence no future import here,
and fills in defaults of what it compiles alone, hence a function around each of ours.
"""

# ruff: noqa: UP006, UP035, UP045

import typing
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from gnn_backend.adapters import torch_scatter as ours


def _called(function: Any) -> Any:
    """The function, to be called and not compiled."""
    function.__annotations__ = typing.get_type_hints(function)
    return torch.jit.ignore(function)


_scatter = _called(ours.scatter)
_scatter_sum = _called(ours.scatter_sum)
_scatter_add = _called(ours.scatter_add)
_scatter_mul = _called(ours.scatter_mul)
_scatter_mean = _called(ours.scatter_mean)
_scatter_min = _called(ours.scatter_min)
_scatter_max = _called(ours.scatter_max)
_segment_csr = _called(ours.segment_csr)
_gather_csr = _called(ours.gather_csr)
_segment_sum_csr = _called(ours.segment_sum_csr)
_segment_add_csr = _called(ours.segment_add_csr)
_segment_mean_csr = _called(ours.segment_mean_csr)
_segment_min_csr = _called(ours.segment_min_csr)
_segment_max_csr = _called(ours.segment_max_csr)
_segment_coo = _called(ours.segment_coo)
_gather_coo = _called(ours.gather_coo)
_segment_sum_coo = _called(ours.segment_sum_coo)
_segment_add_coo = _called(ours.segment_add_coo)
_segment_mean_coo = _called(ours.segment_mean_coo)
_segment_min_coo = _called(ours.segment_min_coo)
_segment_max_coo = _called(ours.segment_max_coo)
_scatter_std = _called(ours.scatter_std)
_scatter_logsumexp = _called(ours.scatter_logsumexp)
_scatter_softmax = _called(ours.scatter_softmax)
_scatter_log_softmax = _called(ours.scatter_log_softmax)


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
    reduce: str = "sum",
) -> Tensor:
    return _scatter(src, index, dim, out, dim_size, reduce)  # type: ignore[no-any-return]


def scatter_sum(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
) -> Tensor:
    return _scatter_sum(src, index, dim, out, dim_size)  # type: ignore[no-any-return]


def scatter_add(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
) -> Tensor:
    return _scatter_add(src, index, dim, out, dim_size)  # type: ignore[no-any-return]


def scatter_mul(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
) -> Tensor:
    return _scatter_mul(src, index, dim, out, dim_size)  # type: ignore[no-any-return]


def scatter_mean(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
) -> Tensor:
    return _scatter_mean(src, index, dim, out, dim_size)  # type: ignore[no-any-return]


def scatter_min(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
) -> Tuple[Tensor, Tensor]:
    return _scatter_min(src, index, dim, out, dim_size)  # type: ignore[no-any-return]


def scatter_max(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
) -> Tuple[Tensor, Tensor]:
    return _scatter_max(src, index, dim, out, dim_size)  # type: ignore[no-any-return]


def segment_csr(
    src: Tensor, indptr: Tensor, out: Optional[Tensor] = None, reduce: str = "sum"
) -> Tensor:
    return _segment_csr(src, indptr, out, reduce)  # type: ignore[no-any-return]


def gather_csr(src: Tensor, indptr: Tensor, out: Optional[Tensor] = None) -> Tensor:
    return _gather_csr(src, indptr, out)  # type: ignore[no-any-return]


def segment_sum_csr(src: Tensor, indptr: Tensor, out: Optional[Tensor] = None) -> Tensor:
    return _segment_sum_csr(src, indptr, out)  # type: ignore[no-any-return]


def segment_add_csr(src: Tensor, indptr: Tensor, out: Optional[Tensor] = None) -> Tensor:
    return _segment_add_csr(src, indptr, out)  # type: ignore[no-any-return]


def segment_mean_csr(src: Tensor, indptr: Tensor, out: Optional[Tensor] = None) -> Tensor:
    return _segment_mean_csr(src, indptr, out)  # type: ignore[no-any-return]


def segment_min_csr(
    src: Tensor, indptr: Tensor, out: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    return _segment_min_csr(src, indptr, out)  # type: ignore[no-any-return]


def segment_max_csr(
    src: Tensor, indptr: Tensor, out: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    return _segment_max_csr(src, indptr, out)  # type: ignore[no-any-return]


def segment_coo(
    src: Tensor,
    index: Tensor,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
    reduce: str = "sum",
) -> Tensor:
    return _segment_coo(src, index, out, dim_size, reduce)  # type: ignore[no-any-return]


def gather_coo(src: Tensor, index: Tensor, out: Optional[Tensor] = None) -> Tensor:
    return _gather_coo(src, index, out)  # type: ignore[no-any-return]


def segment_sum_coo(
    src: Tensor, index: Tensor, out: Optional[Tensor] = None, dim_size: Optional[int] = None
) -> Tensor:
    return _segment_sum_coo(src, index, out, dim_size)  # type: ignore[no-any-return]


def segment_add_coo(
    src: Tensor, index: Tensor, out: Optional[Tensor] = None, dim_size: Optional[int] = None
) -> Tensor:
    return _segment_add_coo(src, index, out, dim_size)  # type: ignore[no-any-return]


def segment_mean_coo(
    src: Tensor, index: Tensor, out: Optional[Tensor] = None, dim_size: Optional[int] = None
) -> Tensor:
    return _segment_mean_coo(src, index, out, dim_size)  # type: ignore[no-any-return]


def segment_min_coo(
    src: Tensor, index: Tensor, out: Optional[Tensor] = None, dim_size: Optional[int] = None
) -> Tuple[Tensor, Tensor]:
    return _segment_min_coo(src, index, out, dim_size)  # type: ignore[no-any-return]


def segment_max_coo(
    src: Tensor, index: Tensor, out: Optional[Tensor] = None, dim_size: Optional[int] = None
) -> Tuple[Tensor, Tensor]:
    return _segment_max_coo(src, index, out, dim_size)  # type: ignore[no-any-return]


def scatter_std(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
    unbiased: bool = True,
) -> Tensor:
    return _scatter_std(src, index, dim, out, dim_size, unbiased)  # type: ignore[no-any-return]


def scatter_logsumexp(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
    eps: float = 1e-12,
) -> Tensor:
    return _scatter_logsumexp(src, index, dim, out, dim_size, eps)  # type: ignore[no-any-return]


def scatter_softmax(
    src: Tensor, index: Tensor, dim: int = -1, dim_size: Optional[int] = None
) -> Tensor:
    return _scatter_softmax(src, index, dim, dim_size)  # type: ignore[no-any-return]


def scatter_log_softmax(
    src: Tensor, index: Tensor, dim: int = -1, eps: float = 1e-12, dim_size: Optional[int] = None
) -> Tensor:
    return _scatter_log_softmax(src, index, dim, eps, dim_size)  # type: ignore[no-any-return]
