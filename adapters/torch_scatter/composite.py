"""Softmax, its logarithm, log-sum-exp and standard deviation over values with equal index."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.adapters.torch_scatter import autograd
from gnn_backend.adapters.torch_scatter.place import Place, dimension, place_of
from gnn_backend.adapters.torch_scatter.scatter import check_out, extreme_with
from gnn_backend.errors import invalid


def scatter_softmax(
    src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None
) -> Tensor:
    r"""Softmax over values with equal index.

    .. math:: y_e = \exp(x_e) \Big/ \sum_{j \,:\, \mathrm{index}_j = \mathrm{index}_e} \exp(x_j)

    Parameters
    ----------
    src : floating-point Tensor [*, E, *]
    index : int64 Tensor
        Broadcasts to the shape of ``src``, as of :func:`.scatter.scatter_sum`.
    dim : int
    dim_size : int, optional
        More than the largest index; known, it saves a copy to the host.

    Returns
    -------
    Tensor [*, E, *]
        NaN where all with that index are -inf, or one is NaN or +inf.

    Raises
    ------
    InvalidArgument
        The source is not floating-point, the index has the wrong dtype, or there is no such
        dimension.
    """
    _check_floating("scatter_softmax", src)
    place = place_of(src, index, dim, dim_size=dim_size, eager=True)
    found = autograd.softmax(src, place)
    if found is not None:
        return found
    powers = _centred(src, place).exp()
    return powers / autograd.taken(autograd.sums(powers, place), place)


def scatter_log_softmax(
    src: Tensor, index: Tensor, dim: int = -1, eps: float = 1e-12, dim_size: int | None = None
) -> Tensor:
    """Logarithm of :func:`scatter_softmax`; ``eps`` is added to the sum of the powers."""
    _check_floating("scatter_log_softmax", src)
    place = place_of(src, index, dim, dim_size=dim_size, eager=True)
    centred = _centred(src, place)
    logs = autograd.sums(centred.exp(), place).add(eps).log()
    return centred - autograd.taken(logs, place)


def scatter_logsumexp(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    eps: float = 1e-12,
) -> Tensor:
    r"""Logarithm of the sum of the powers of values with equal index.

    .. math:: y_i = m_i + \log ( \epsilon + \sum_{j : \mathrm{index}_j = i} \exp(x_j - m_i) )

    with the largest value m. What is no number, or minus infinity as for an index that does not
    occur, becomes 0.

    Parameters
    ----------
    src : floating-point Tensor [*, E, *]
    index, dim, dim_size
        As of :func:`.scatter.scatter_sum`.
    out : Tensor [*, N, *], optional
        A logarithm whose power takes part where the index occurs; overwritten.
    eps : float

    Returns
    -------
    Tensor [*, N, *]

    Raises
    ------
    InvalidArgument
        As :func:`scatter_softmax`, or ``out`` does not fit.
    """
    _check_floating("scatter_logsumexp", src)
    place = place_of(src, index, dim, out=out, dim_size=dim_size, eager=True)
    if out is not None:
        check_out(out, src, place)
    with torch.no_grad():
        top, arg = autograd.extremes(src, place, "max")
        top = torch.where(arg < place.shape[place.dim], top, -torch.inf)
        highest = autograd.taken(top, place)
    centred = src - highest
    powers = centred.masked_fill(centred.isnan(), -torch.inf).exp()
    total = autograd.sums(powers, place)
    if out is not None:
        total = out.sub_(top).exp_().add_(total)
    total = total.add_(eps) if out is not None else total + eps
    return total.log_().add_(top).nan_to_num_(neginf=0.0)


def scatter_std(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    unbiased: bool = True,
) -> Tensor:
    """Standard deviation of values with equal index; 0 where there are none.

    Parameters
    ----------
    src : floating-point Tensor [*, E, *]
    index, dim, dim_size
        As of :func:`.scatter.scatter_sum`.
    out : Tensor [*, N, *], optional
        Squared deviations that the values' own are added to, in place.
    unbiased : bool
        Divide by one less than the number of values.

    Returns
    -------
    Tensor [*, N, *]
        A new tensor, with ``out`` too.

    Raises
    ------
    InvalidArgument
        As :func:`.scatter.scatter_sum`, or ``out`` does not fit.
    """
    place = place_of(src, index, dimension(src, dim), out=out, dim_size=dim_size, eager=True)
    if out is not None:
        check_out(out, src, place)
    count = autograd.counts(src, place)
    mean = autograd.sums(src, place) / count
    away = src - autograd.taken(mean, place)
    squares = autograd.sums(away * away, place)
    if out is not None:
        squares = out.add_(squares)
    if unbiased:
        count = (count - 1).clamp(min=1)
    return squares.div(count + 1e-6).sqrt().to(src.dtype)


def _centred(src: Tensor, place: Place) -> Tensor:
    """The values less the largest with their index, which is a constant to the gradient."""
    with torch.no_grad():
        top, _ = extreme_with("max", src, place, None)
        highest = autograd.taken(top, place)
    return src - highest


def _check_floating(name: str, src: Tensor) -> None:
    if not src.is_floating_point():
        raise invalid("src", f"{name} wants floating-point numbers", src.dtype, "torch.float32, "
                      "for example")  # fmt: skip
