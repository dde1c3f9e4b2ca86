"""The scatter functions of torch_scatter: reductions by an index in any order."""

from __future__ import annotations

from torch import Tensor

from gnn_backend.adapters.torch_scatter import autograd
from gnn_backend.adapters.torch_scatter.place import Place, place_of
from gnn_backend.errors import invalid

REDUCTIONS = "sum, add, mul, mean, min or max"


def scatter_sum(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    r"""Sum values with equal index.

    .. math:: y_i = y_i + \sum_{j \,:\, \mathrm{index}_j = i} x_j

    Parameters
    ----------
    src : Tensor [*, E, *]
    index : int64 Tensor
        Broadcasts to the shape of ``src``: one dimension lies along ``dim``, several are the first
        ones of ``src``.
    dim : int
    out : Tensor [*, N, *], optional
        What to add to, in place.
    dim_size : int, optional
        N, where ``out`` is not given; by default one more than the largest index.

    Returns
    -------
    Tensor [*, N, *]
        ``out``, or a new tensor.

    Raises
    ------
    InvalidArgument
        The index has the wrong dtype, or there is no such dimension.
    RuntimeError
        From torch, where shapes do not fit.
    """
    place = place_of(src, index, dim, out=out, dim_size=dim_size)
    if out is None:
        return autograd.sums(src, place)
    if out.shape != place.result or out.dtype != src.dtype or not place.on_groups(src):
        return out.scatter_add_(place.dim, place.index, src)
    return out.add_(autograd.sums(src, place))


def scatter_add(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """Sum values with equal index: :func:`scatter_sum`."""
    return scatter_sum(src, index, dim, out, dim_size)


def scatter_mul(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """Multiply values with equal index; 1 where there are none.

    Parameters and errors are those of :func:`scatter_sum`; ``out`` is multiplied in place. The
    gradient is the product divided by the value, 0 where that is no number.
    """
    place = place_of(src, index, dim, out=out, dim_size=dim_size)
    if out is None:
        return autograd.products(src, place)
    check_out(out, src, place)
    return out.mul_(autograd.products(src, place))


def scatter_mean(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """Mean of values with equal index, of integers rounded down; 0 where there are none.

    Parameters and errors are those of :func:`scatter_sum`. ``out`` is added to the sum before the
    division, and is not counted.
    """
    place = place_of(src, index, dim, out=out, dim_size=dim_size)
    if out is None:
        return autograd.means(src, place)
    check_out(out, src, place)
    out = out.add_(autograd.sums(src, place))
    count = autograd.counts(src, place)
    return out.div_(count, rounding_mode=None if out.is_floating_point() else "floor")


def scatter_min(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Smallest of the values with equal index, and where it stands: see :func:`scatter_max`."""
    return _extreme("min", src, index, dim, out, dim_size)


def scatter_max(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Largest of the values with equal index, and where it stands.

    Parameters and errors are those of :func:`scatter_sum`; ``out`` takes part, in place.

    Returns
    -------
    values : Tensor [*, N, *]
        0 where there are none. A NaN never wins, nor does what is not above the lowest finite
        number.
    arg : int64 Tensor [*, N, *]
        Place along ``dim`` of the first that is largest, which alone gets the gradient; the size of
        ``dim`` where nothing won, or ``out`` did.
    """
    return _extreme("max", src, index, dim, out, dim_size)


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Reduce values with equal index.

    Parameters
    ----------
    src, index, dim, out, dim_size
        As of :func:`scatter_sum`.
    reduce : {"sum", "add", "mul", "mean", "min", "max"}

    Returns
    -------
    Tensor [*, N, *]

    Raises
    ------
    InvalidArgument
        Also of a reduction that is not known.
    """
    if reduce in ("sum", "add"):
        return scatter_sum(src, index, dim, out, dim_size)
    if reduce == "mul":
        return scatter_mul(src, index, dim, out, dim_size)
    if reduce == "mean":
        return scatter_mean(src, index, dim, out, dim_size)
    if reduce in ("min", "max"):
        return _extreme(reduce, src, index, dim, out, dim_size)[0]
    raise invalid("reduce", "unknown", repr(reduce), REDUCTIONS)


def _extreme(
    op: str, src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None
) -> tuple[Tensor, Tensor]:
    place = place_of(src, index, dim, out=out, dim_size=dim_size, eager=True)
    return extreme_with(op, src, place, out)


def extreme_with(op: str, src: Tensor, place: Place, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """Extremes of the values and, in place, of ``out``, which wins against equals."""
    if out is None:
        return autograd.extremes(src, place, op)
    check_out(out, src, place)
    values, arg = autograd.extremes(src, place, op)
    size = place.shape[place.dim]
    better = (values > out) if op == "max" else (values < out)
    better &= arg < size
    out.copy_(values.where(better, out))
    return out, arg.where(better, size)


def check_out(out: Tensor, src: Tensor, place: Place) -> None:
    """Refuse what the result cannot be written to.

    Raises
    ------
    InvalidArgument
    """
    if tuple(out.shape) != place.result or out.dtype != src.dtype or out.device != src.device:
        raise invalid("out", "does not fit", f"{tuple(out.shape)} {out.dtype} on {out.device}",
                      f"{place.result} {src.dtype} on {src.device}")  # fmt: skip
