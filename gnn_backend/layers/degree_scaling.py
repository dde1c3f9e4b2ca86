"""Scaling aggregated features by the degree (Corso et al., 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnn_backend.errors import invalid

SCALERS = ("identity", "amplification", "attenuation", "linear", "inverse_linear")


def degree_scaled(
    out: Tensor, degree: Tensor, scalers: Sequence[str], mean: Tensor, mean_log: Tensor
) -> Tensor:
    """Scale rows by functions of their degree and lay the results side by side.

    Parameters
    ----------
    out : Tensor [N, *, D]
    degree : Tensor [N]
        Integers.
    scalers : sequence of str
        Among ``identity``, ``amplification`` (log(d + 1) / mean_log), ``attenuation`` (its
        inverse), ``linear`` (d / mean) and ``inverse_linear``; the inverses take a degree of 0
        for 1.
    mean, mean_log : Tensor [1]
        Means of d and of log(d + 1) over the training nodes.

    Returns
    -------
    Tensor [N, *, len(scalers) * D]

    Raises
    ------
    InvalidArgument
        A scaler is unknown.
    """
    d = degree.to(out.dtype).view(-1, *(1,) * (out.dim() - 1))
    scaled = []
    for scaler in scalers:
        if scaler == "identity":
            scaled.append(out)
        elif scaler == "amplification":
            scaled.append(out * (torch.log(d + 1) / mean_log))
        elif scaler == "attenuation":
            scaled.append(out * (mean_log / torch.log(d.clamp(min=1) + 1)))
        elif scaler == "linear":
            scaled.append(out * (d / mean))
        elif scaler == "inverse_linear":
            scaled.append(out * (mean / d.clamp(min=1)))
        else:
            raise invalid("scaler", "unknown", repr(scaler), f"one of {', '.join(SCALERS)}")
    return torch.cat(scaled, dim=-1) if len(scaled) > 1 else scaled[0]
