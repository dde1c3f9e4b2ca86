"""Scaling aggregated features by the degree (Corso et al., 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.ops.projected_attention import Projection

SCALERS = ("identity", "amplification", "attenuation", "linear", "inverse_linear")


def scale_factors(
    degree: Tensor, scalers: Sequence[str], mean: Tensor | float, mean_log: Tensor | float
) -> Tensor:
    """What each scaler multiplies a row with.

    Parameters
    ----------
    degree : Tensor [N]
        Floating point.
    scalers : sequence of str
        Among ``identity``, ``amplification`` (log(d + 1) / mean_log), ``attenuation`` (its
        inverse), ``linear`` (d / mean) and ``inverse_linear``; the inverses take a degree of 0
        for 1.
    mean, mean_log : Tensor [1] or float
        Means of d and of log(d + 1) over the training nodes.

    Returns
    -------
    Tensor [N, len(scalers)]

    Raises
    ------
    InvalidArgument
        A scaler is unknown.
    """
    columns = []
    for scaler in scalers:
        if scaler == "identity":
            columns.append(torch.ones_like(degree))
        elif scaler == "amplification":
            columns.append(torch.log(degree + 1) / mean_log)
        elif scaler == "attenuation":
            columns.append(mean_log / torch.log(degree.clamp(min=1) + 1))
        elif scaler == "linear":
            columns.append(degree / mean)
        elif scaler == "inverse_linear":
            columns.append(mean / degree.clamp(min=1))
        else:
            raise invalid("scaler", "unknown", repr(scaler), f"one of {', '.join(SCALERS)}")
    return torch.stack(columns, dim=1)


def degree_scaled(x: Tensor, factors: Tensor) -> Tensor:
    """Rows times each of their factors, side by side.

    Parameters
    ----------
    x : Tensor [N, *, D]
    factors : Tensor [N, S]

    Returns
    -------
    Tensor [N, *, S * D]
    """
    table = factors.view(len(factors), *(1,) * (x.dim() - 2), factors.shape[1], 1)
    return (x.unsqueeze(-2) * table).flatten(-2)


def scaled_update(own: Tensor, x: Tensor, factors: Tensor, update: Projection) -> Tensor:
    """A linear map of a node's own features beside its scaled rows.

    Scaling rows commutes with the map, so the rows are not laid side by side scaled.

    Parameters
    ----------
    own : Tensor [N, F]
    x : Tensor [N, D]
    factors : Tensor [N, S]
    update : Projection
        Weight [O, F + S D], of what ``torch.cat([own, degree_scaled(x, factors)], 1)`` gives.

    Returns
    -------
    Tensor [N, O]
    """
    weight, (rows, scalers) = update.weight, factors.shape
    width_out, width = weight.shape[0], own.shape[1]
    stacked = weight[:, width:].reshape(width_out, scalers, -1).transpose(0, 1).flatten(0, 1)
    mapped = torch.nn.functional.linear(x, stacked).view(rows, scalers, width_out)
    out = torch.nn.functional.linear(own, weight[:, :width], update.bias)
    return out + (mapped * factors.unsqueeze(-1)).sum(1)
