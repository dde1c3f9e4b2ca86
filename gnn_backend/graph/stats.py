"""Degree statistics of one direction of a graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DegreeStats:
    """Summary of a degree sequence.

    Attributes
    ----------
    maximum : int
    mean, median, p99, skewness : float
        ``skewness`` is the third standardised moment (0 for a regular graph).
    """

    maximum: int
    mean: float
    median: float
    p99: float
    skewness: float


def degree_stats(degree: Tensor) -> DegreeStats:
    """Compute the statistics of ``degree`` [N]; one device-to-host copy."""
    if degree.numel() == 0:
        return DegreeStats(0, 0.0, 0.0, 0.0, 0.0)
    ordered = degree.double().sort().values
    mean, std = ordered.mean(), ordered.std(unbiased=False)
    skew = torch.where(std > 0, ((ordered - mean) / std.clamp(min=1e-30)).pow(3).mean(), 0.0)
    last = ordered.numel() - 1
    picked = torch.stack(
        [ordered[last], mean, ordered[last // 2], ordered[int(0.99 * last)], skew]
    ).tolist()
    return DegreeStats(int(picked[0]), *picked[1:])
