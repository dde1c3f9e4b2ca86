"""Polynomials of a scaled adjacency, applied to features and mapped linearly: graph filters.

A linear map of the powers is applied in the cheaper order. Where it comes first, the polynomial is
evaluated from its highest power down (Horner's scheme, for Chebyshev polynomials Clenshaw's), at
the width of the result and without keeping the powers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear as apply_linear

from gnn_backend.layers.linear_aggregation import maps_first
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency, scaled
from gnn_backend.ops.projected_attention import Projection


def power_times(adjacency: ScaledAdjacency, x: Tensor, power: int) -> Tensor:
    """A power of the adjacency times a table.

    Parameters
    ----------
    adjacency : ScaledAdjacency
        Of as many sources as destinations.
    x : Tensor [N, *]
    power : int

    Returns
    -------
    Tensor [N, *]
        Between two factors the scales of both ends are multiplied once, as one.
    """
    if power < 1:
        return x
    src, dst = adjacency.src, adjacency.dst
    both = src if dst is None else dst if src is None else src * dst
    h = scaled(x, src)
    for _ in range(power - 1):
        h = scaled(adjacency.neighbours(h), both)
    return scaled(adjacency.neighbours(h), dst)


def power_mapped(adjacency: ScaledAdjacency, x: Tensor, power: int, linear: Projection) -> Tensor:
    """A power of the adjacency times a table, mapped linearly in the cheaper order.

    Parameters
    ----------
    adjacency : ScaledAdjacency
        Of as many sources as destinations.
    x : Tensor [N, *, F]
    power : int
    linear : Projection
        Weight [D, F] and bias [D].

    Returns
    -------
    Tensor [N, *, D]
    """
    weight, bias = linear
    if maps_first(adjacency, x, *weight.shape[::-1]):
        out = power_times(adjacency, apply_linear(x, weight), power)
        return out if bias is None else out + bias
    return apply_linear(power_times(adjacency, x, power), weight, bias)


def powers_mapped(
    adjacency: ScaledAdjacency, x: Tensor, order: int, weight: Tensor, bias: Tensor | None
) -> Tensor | None:
    r"""Sum of all powers of the adjacency, each with a linear map of its own.

    .. math:: Y = b + \sum_{k=0}^{K} A^k X W_k

    Parameters
    ----------
    adjacency : ScaledAdjacency
    x : Tensor [N, *, F]
    order : int
        K, at least 1.
    weight : Tensor [D, (K + 1) F]
        The maps side by side.
    bias : Tensor [D], optional

    Returns
    -------
    Tensor [N, *, D] or None
        None where mapping first does not pay; then :func:`powers` is to be mapped.
    """
    if not maps_first(adjacency, x, weight.shape[1] // (order + 1), weight.shape[0]):
        return None
    terms = _terms(x, order + 1, weight, bias)
    out = terms[-1]
    for term in reversed(terms[:-1]):
        out = adjacency.times(out, term)
    return out


def powers(adjacency: ScaledAdjacency, x: Tensor, order: int) -> Tensor:
    """Products with the powers 0 to ``order`` side by side, [N, *, (order + 1) F]."""
    found = [x]
    for _ in range(order):
        found.append(adjacency.times(found[-1]))
    return torch.cat(found, dim=-1)


def personalized_pagerank(
    adjacency: ScaledAdjacency,
    x: Tensor,
    steps: int,
    alpha: float,
    weights: Callable[[], Tensor] | None = None,
) -> Tensor:
    r"""Steps of :math:`H \leftarrow (1 - \alpha) A H + \alpha X` (Gasteiger et al., 2019).

    Parameters
    ----------
    adjacency : ScaledAdjacency
    x : Tensor [N, *]
    steps : int
    alpha : float
    weights : callable, optional
        Gives the edges' weights [E] of each step, as dropout leaves them.

    Returns
    -------
    Tensor [N, *]
    """
    kept = 1 - alpha
    if adjacency.dst is not None:
        adjacency, kept = adjacency._replace(dst=adjacency.dst * kept), 1.0
    start = alpha * x
    for _ in range(steps):
        if weights is not None:
            adjacency = adjacency._replace(weight=weights())
        if kept == 1.0:
            x = adjacency.times(x, start)
        else:
            x = torch.add(start, adjacency.times(x), alpha=kept)
    return x


class Laplacian:
    r"""The rescaled Laplacian :math:`r (I - A) - I` with a factor :math:`r` for each node.

    Parameters
    ----------
    adjacency : ScaledAdjacency
        Normalised, with factors at both ends.
    factor : Tensor [N] or float
        Two over the largest eigenvalue of the node's graph.

    Attributes
    ----------
    adjacency : ScaledAdjacency
        With what the factor makes of its destinations' factors.
    """

    def __init__(self, adjacency: ScaledAdjacency, factor: Tensor | float) -> None:
        assert adjacency.dst is not None
        self.adjacency = adjacency._replace(dst=-factor * adjacency.dst)
        self._diagonal = factor - 1

    def times(self, x: Tensor, added: Tensor | None = None, by: float = 1.0) -> Tensor:
        """The product with a table, times a number, plus something."""
        adjacency, diagonal = self.adjacency, self._diagonal
        if by != 1.0:
            assert adjacency.dst is not None
            adjacency, diagonal = adjacency._replace(dst=by * adjacency.dst), by * diagonal
        if isinstance(diagonal, Tensor):
            return adjacency.times(x, scaled(x, diagonal, added))
        if diagonal != 0.0:
            added = diagonal * x if added is None else torch.add(added, x, alpha=diagonal)
        return adjacency.times(x, added)


def chebyshev_mapped(
    laplacian: Laplacian, x: Tensor, terms: int, linear: Projection
) -> Tensor | None:
    r"""Sum of Chebyshev polynomials of a Laplacian, each with a linear map of its own.

    .. math:: Y = b + \sum_{k=0}^{K-1} T_k(L) X W_k

    Parameters
    ----------
    laplacian : Laplacian
    x : Tensor [N, F]
    terms : int
        K, at least 1.
    linear : Projection
        Weight [D, K F], the maps side by side, and bias [D].

    Returns
    -------
    Tensor [N, D] or None
        None where mapping first does not pay; then :func:`chebyshev` is to be mapped.
    """
    width_out, width_in = linear.weight.shape
    if terms < 2 or not maps_first(laplacian.adjacency, x, width_in // terms, width_out):
        return None
    first, *rest = _terms(x, terms, linear.weight, linear.bias)
    later: Tensor | None = None
    latest = rest[-1]
    for term in reversed(rest[:-1]):
        added = term if later is None else term - later
        later, latest = latest, laplacian.times(latest, added, 2.0)
    return laplacian.times(latest, first if later is None else first - later)


def chebyshev(laplacian: Laplacian, x: Tensor, terms: int) -> Tensor:
    """Products with the polynomials :math:`T_0` to :math:`T_{K-1}` side by side, [N, K F]."""
    found = [x]
    for k in range(1, terms):
        step = laplacian.times(x) if k == 1 else laplacian.times(found[-1], -found[-2], 2.0)
        found.append(step)
    return torch.cat(found, dim=1)


def _terms(x: Tensor, count: int, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    """The table times each of ``count`` maps that lie side by side; the bias with the first."""
    width_out, width_in = weight.shape[0], weight.shape[1] // count
    stacked = weight.view(width_out, count, width_in).transpose(0, 1).reshape(-1, width_in)
    if bias is not None:
        bias = torch.cat([bias, bias.new_zeros((count - 1) * width_out)])
    return apply_linear(x, stacked, bias).split(width_out, dim=-1)
