"""The segment functions of torch_scatter: reductions over sorted values, and the way back."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.adapters.torch_scatter import autograd
from gnn_backend.adapters.torch_scatter.compute import lowest
from gnn_backend.adapters.torch_scatter.place import (
    Place,
    check_integers,
    last_offset,
    place_of,
    segments_of,
)
from gnn_backend.adapters.torch_scatter.scatter import check_out, extreme_with
from gnn_backend.errors import invalid

REDUCTIONS = "sum, add, mean, min or max"


# ---------------------------------------------------------------------- offsets


def segment_sum_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    r"""Sum the values of consecutive segments.

    .. math:: y_i = \sum_{j = \mathrm{indptr}_i}^{\mathrm{indptr}_{i+1} - 1} x_j

    Parameters
    ----------
    src : Tensor [*, E, *]
    indptr : int64 Tensor [*, N + 1]
        Bounds, ascending, along its last dimension, which is the one of ``src`` that is reduced;
        its other sizes broadcast.
    out : Tensor [*, N, *], optional
        Where the result goes; what it holds is lost.

    Returns
    -------
    Tensor [*, N, *]
        0 for segments without values.

    Raises
    ------
    InvalidArgument
        The bounds have the wrong dtype or too many dimensions, or ``out`` does not fit.
    """
    place = segments_of(src.shape, indptr)
    return _into(out, src, place, autograd.sums(src, place))


def segment_add_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Sum the values of consecutive segments: :func:`segment_sum_csr`."""
    return segment_sum_csr(src, indptr, out)


def segment_mean_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Mean of consecutive segments; parameters and errors of :func:`segment_sum_csr`."""
    place = segments_of(src.shape, indptr)
    return _into(out, src, place, autograd.means(src, place))


def segment_min_csr(
    src: Tensor, indptr: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Smallest of consecutive segments, and where it stands: see :func:`segment_max_csr`."""
    return _extreme_csr("min", src, indptr, out)


def segment_max_csr(
    src: Tensor, indptr: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Largest of consecutive segments, and where it stands.

    Parameters and errors are those of :func:`segment_sum_csr`.

    Returns
    -------
    values : Tensor [*, N, *]
        0 for segments without values; the lowest finite number for one of nothing but NaN and -inf.
    arg : int64 Tensor [*, N, *]
        Place along the dimension of the first that is largest; its size where nothing is.
    """
    return _extreme_csr("max", src, indptr, out)


def segment_csr(
    src: Tensor, indptr: Tensor, out: Tensor | None = None, reduce: str = "sum"
) -> Tensor:
    """Reduce consecutive segments.

    Parameters
    ----------
    src, indptr, out
        As of :func:`segment_sum_csr`.
    reduce : {"sum", "add", "mean", "min", "max"}

    Returns
    -------
    Tensor [*, N, *]

    Raises
    ------
    InvalidArgument
        Also of a reduction that is not known.
    """
    if reduce in ("sum", "add"):
        return segment_sum_csr(src, indptr, out)
    if reduce == "mean":
        return segment_mean_csr(src, indptr, out)
    if reduce in ("min", "max"):
        return _extreme_csr(reduce, src, indptr, out)[0]
    raise invalid("reduce", "unknown", repr(reduce), REDUCTIONS)


def gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    r"""Repeat the values of segments for all that is in them.

    .. math:: y_j = x_i \quad \text{for } \mathrm{indptr}_i \le j < \mathrm{indptr}_{i+1}

    Parameters
    ----------
    src : Tensor [*, N, *]
    indptr : int64 Tensor [*, N + 1]
        As of :func:`segment_sum_csr`.
    out : Tensor [*, E, *], optional
        Where the result goes; by default a new tensor, E the last bound.

    Returns
    -------
    Tensor [*, E, *]

    Raises
    ------
    InvalidArgument
        As :func:`segment_sum_csr`, or the source has another number of segments.
    """
    check_integers("indptr", indptr)
    if not 0 < indptr.dim() <= src.dim():
        raise invalid("indptr", "wrong number of dimensions", indptr.dim(), f"1 to {src.dim()}")
    dim = indptr.dim() - 1
    if src.shape[dim] not in (0, indptr.shape[-1] - 1):
        raise invalid("src", "wrong number of segments", src.shape[dim], indptr.shape[-1] - 1)
    size = out.shape[dim] if out is not None else last_offset(indptr) if src.numel() else 0
    shape = torch.Size((*src.shape[:dim], size, *src.shape[dim + 1 :]))
    place = segments_of(shape, indptr)
    found = autograd.taken(src, place)
    if out is None:
        return found
    _check_like(out, src, tuple(shape))
    return out.copy_(found)


# ---------------------------------------------------------------------- sorted index


def segment_sum_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Sum values with equal index, which is sorted.

    Parameters
    ----------
    src : Tensor [*, E, *]
    index : int64 Tensor [*, E]
        Ascending along its last dimension, which is the one of ``src`` that is reduced; its other
        sizes broadcast.
    out : Tensor [*, N, *], optional
        What to add to, in place.
    dim_size : int, optional
        N, where ``out`` is not given; by default one more than the largest index.

    Returns
    -------
    Tensor [*, N, *]

    Raises
    ------
    InvalidArgument
        The index has the wrong dtype or too many dimensions, or ``out`` does not fit.
    """
    place = _sorted(src, index, out, dim_size)
    if out is None:
        return autograd.sums(src, place)
    check_out(out, src, place)
    return out.add_(autograd.sums(src, place))


def segment_add_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Sum values with equal index, which is sorted: :func:`segment_sum_coo`."""
    return segment_sum_coo(src, index, out, dim_size)


def segment_mean_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Mean of values with equal index, which is sorted.

    Parameters and errors are those of :func:`segment_sum_coo`. ``out`` is added to the sum before
    the division, and is not counted.
    """
    place = _sorted(src, index, out, dim_size)
    if out is None:
        return autograd.means(src, place)
    check_out(out, src, place)
    out = out.add_(autograd.sums(src, place))
    rounding = None if out.is_floating_point() else "trunc"
    return out.div_(autograd.counts(src, place), rounding_mode=rounding)


def segment_min_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Smallest with equal index, and where it stands; see :func:`.scatter.scatter_max`."""
    return extreme_with("min", src, _sorted(src, index, out, dim_size), out)


def segment_max_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Largest with equal index, and where it stands; see :func:`.scatter.scatter_max`."""
    return extreme_with("max", src, _sorted(src, index, out, dim_size), out)


def segment_coo(
    src: Tensor,
    index: Tensor,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Reduce values with equal index, which is sorted.

    Parameters
    ----------
    src, index, out, dim_size
        As of :func:`segment_sum_coo`.
    reduce : {"sum", "add", "mean", "min", "max"}

    Returns
    -------
    Tensor [*, N, *]

    Raises
    ------
    InvalidArgument
        Also of a reduction that is not known.
    """
    if reduce in ("sum", "add"):
        return segment_sum_coo(src, index, out, dim_size)
    if reduce == "mean":
        return segment_mean_coo(src, index, out, dim_size)
    if reduce in ("min", "max"):
        return extreme_with(reduce, src, _sorted(src, index, out, dim_size), out)[0]
    raise invalid("reduce", "unknown", repr(reduce), REDUCTIONS)


def gather_coo(src: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    r"""Take values by an index, which is sorted: :math:`y_j = x_{\mathrm{index}_j}`.

    Parameters
    ----------
    src : Tensor [*, N, *]
    index : int64 Tensor [*, E]
        Its sizes before the last are those of ``src``.
    out : Tensor [*, E, *], optional
        Where the result goes.

    Returns
    -------
    Tensor [*, E, *]

    Raises
    ------
    InvalidArgument
        The index has the wrong dtype or other sizes, or ``out`` does not fit.
    """
    check_integers("index", index)
    dim = index.dim() - 1
    if dim < 0 or index.dim() > src.dim() or index.shape[:-1] != src.shape[:dim]:
        raise invalid("index", "does not fit src", tuple(index.shape),
                      f"{(*src.shape[:dim], 'E')} or fewer dimensions")  # fmt: skip
    shape = (*src.shape[:dim], index.shape[-1], *src.shape[dim + 1 :])
    # Nothing but the shape is asked of a source of the right size.
    like = src.new_empty(()).expand(shape)
    place = place_of(like, index, dim, dim_size=src.shape[dim], ascending=True)
    found = autograd.taken(src, place)
    if out is None:
        return found
    _check_like(out, src, tuple(shape))
    return out.copy_(found)


# ---------------------------------------------------------------------- shared


def _sorted(src: Tensor, index: Tensor, out: Tensor | None, dim_size: int | None) -> Place:
    check_integers("index", index)
    if not 0 < index.dim() <= src.dim():
        raise invalid("index", "wrong number of dimensions", index.dim(), f"1 to {src.dim()}")
    dim = index.dim() - 1
    index = index.expand(src.shape[: dim + 1])
    return place_of(src, index, dim, out=out, dim_size=dim_size, ascending=True)


def _extreme_csr(op: str, src: Tensor, indptr: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
    place = segments_of(src.shape, indptr)
    values, arg = autograd.extremes(src, place, op)
    if place.groups is not None:
        filled = place.groups.counts().view(*src.shape[: place.dim], place.rows)
        filled = filled[..., : place.count].reshape(
            *src.shape[: place.dim], place.count, *(1,) * (src.dim() - place.dim - 1)
        )
        nothing = (arg == src.shape[place.dim]) & (filled > 0)
        values = values.masked_fill(nothing, lowest(src.dtype, op))
    return _into(out, src, place, values), arg


def _into(out: Tensor | None, src: Tensor, place: Place, found: Tensor) -> Tensor:
    if out is None:
        return found
    check_out(out, src, place)
    return out.copy_(found)


def _check_like(out: Tensor, src: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(out.shape) != shape or out.dtype != src.dtype or out.device != src.device:
        raise invalid("out", "does not fit", f"{tuple(out.shape)} {out.dtype} on {out.device}",
                      f"{shape} {src.dtype} on {src.device}")  # fmt: skip
