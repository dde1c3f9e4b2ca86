"""Graphs and values that break attention kernels; for every target, without pytest."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.ops.support import Problem, problem

INF = math.inf


def pairs(src: list[int], dst: list[int]) -> Tensor:
    return torch.tensor([src, dst], dtype=torch.int64)


#: Edges, sources, destinations.
GRAPHS = {
    "one edge": (pairs([0], [0]), 1, 1),
    "self-loops alone": (pairs([0, 1, 2, 3], [0, 1, 2, 3]), 4, 4),
    "empty rows between": (pairs([1, 1, 3], [1, 5, 5]), 5, 8),
    "duplicates": (pairs([2, 2, 2, 0, 2, 2], [1, 1, 1, 1, 0, 0]), 3, 2),
    "one destination": (pairs(list(range(70)), [0] * 70), 70, 1),
    "one source": (pairs([0] * 70, list(range(70))), 1, 70),
    "one edge many times": (pairs([1] * 70, [2] * 70), 3, 4),
    "hub both ways": (pairs([*[0] * 40, *range(1, 41)], [*range(1, 41), *[0] * 40]), 41, 41),
    "many empty rows": (pairs([5, 6], [0, 63]), 90, 130),
}


def error_factor(name: str) -> int:
    """Equal edges: all gradients but that of x_src cancel to rounding errors."""
    return 10 if name == "one edge many times" else 1


def rows_without_edges(name: str) -> tuple[list[int], list[int]]:
    """Sources and destinations of a graph that no edge touches."""
    edges, num_src, num_dst = GRAPHS[name]
    src, dst = (set(ends) for ends in edges.tolist())
    return sorted(set(range(num_src)) - src), sorted(set(range(num_dst)) - dst)


#: What is written where: operand, row (None: att has none), head, columns, value.
POISONS = {
    "NaN in a source": [("x_src", 5, 0, 3, math.nan)],
    "NaN in a source of few": [("x_src", 7, 1, slice(None), math.nan)],
    "NaN in an unused source": [("x_src", 36, 0, 0, math.nan)],
    "NaN in a destination": [("x_dst", 3, 1, 0, math.nan)],
    "NaN in a destination without edges": [("x_dst", 0, 0, 0, math.nan)],
    "NaN in the attention vector": [("att", None, 1, 2, math.nan)],
    "+inf in a source": [("x_src", 5, 0, 3, INF)],
    "-inf in a source": [("x_src", 5, 0, 3, -INF)],
    "whole source -inf": [("x_src", 5, 1, slice(None), -INF)],
    "+inf in a destination": [("x_dst", 3, 0, 1, INF)],
    "-inf in a destination": [("x_dst", 3, 0, 1, -INF)],
    "+inf in the attention vector": [("att", None, 0, 1, INF)],
    "-inf in the attention vector": [("att", None, 0, 1, -INF)],
    "inf against -inf": [("x_src", 5, 0, 3, INF), ("x_dst", 3, 0, 3, -INF)],
}


def poisoned(name: str, heads: int, dim: int, device: str = "cpu") -> Problem:
    p = problem(heads, dim, device=device)
    with torch.no_grad():
        for operand, row, head, column, value in POISONS[name]:
            table = p.operands[operand]
            (table if row is None else table[row])[head, column] = value
    return p


def masked(
    heads: int, dim: int, sources: list[int], sign: float = 1.0, device: str = "cpu"
) -> Problem:
    """Logits of these sources are -inf by overflow; every operand is finite."""
    p = problem(heads, dim, device=device)
    with torch.no_grad():
        p.operands["x_src"][sources, :, 0] = sign * 1e30
        p.operands["att"][:, 0] = -sign * 1e10
        p.operands["x_dst"][:, :, 0] = 0
    return p


def beside_a_masked_source(heads: int, dim: int, sign: float, device: str = "cpu") -> Problem:
    """Source 0 is masked as above, for one of two destinations; all gradients are finite.

    In column 0 rounding errors are multiplied by 1e10: compare the others, and x_src of source 0.
    """
    p = problem(heads, dim, edges=(pairs([0, 1, 2, 1, 2], [0, 0, 0, 1, 1]), 3, 2), device=device)
    with torch.no_grad():
        p.operands["x_src"][:, :, 0] = 0
        p.operands["x_src"][0, :, 0] = sign * 1e30
        p.operands["x_dst"][:, :, 0] = 0
        p.operands["att"][:, 0] = -sign * 1e10
        p.cotangent[:, :, 0] = 0
    return p


def beside_an_overflow(heads: int, dim: int, device: str = "cpu") -> Problem:
    """float16; x_src + x_dst is finite, but beyond float16, where source 0 meets destination 0.

    The hosts' layers take it for -inf, and so the logit: the edge has no weight, and source 0,
    which has no other edge, no gradient.
    """
    edges = (pairs([0, 1, 2], [0, 0, 0]), 3, 1)
    p = problem(heads, dim, torch.float16, edges=edges, device=device)
    with torch.no_grad():
        p.operands["x_src"][:, :, 0] = 60000
        p.operands["x_src"][0, :, 0] = -60000
        p.operands["x_dst"][:, :, 0] = -60000
        p.operands["att"][:, 0] = 1e-3
        p.cotangent[:, :, 0] = 0
    return p


def large_logits(heads: int, dim: int, size: float, device: str = "cpu") -> tuple[Problem, Tensor]:
    """Logits up to ``size``, of which two sources share the largest; and the right output row."""
    p = problem(heads, dim, edges=(pairs(list(range(20)), [0] * 20), 20, 1), device=device)
    p.slope = 1.0
    with torch.no_grad():
        x_src = p.operands["x_src"]
        x_src[:, :, 0] = torch.arange(20, device=device)[:, None] // 2 * 100.0
        x_src[:, :, 1:] /= 100
        p.operands["x_dst"].zero_()
        p.operands["att"].zero_()
        p.operands["att"][:, 0] = size / 900
        top = slice(18, 20) if size > 0 else slice(0, 2)
        return p, x_src[top].mean(0)


def with_ties(heads: int, dim: int, slope: float, device: str = "cpu") -> Problem:
    """x_src + x_dst is exactly 0 at over a fifth of the places."""
    p = problem(heads, dim, slope=slope, device=device)
    with torch.no_grad():
        for name in ("x_src", "x_dst"):
            p.operands[name].round_().clamp_(-1, 1)
    return p


def same_places(got: Tensor, want: Tensor) -> None:
    """NaN and infinities at the same places, the rest close beside the largest value."""
    most = want[want.isfinite()].abs().max().item() if want.isfinite().any() else 0.0
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * most, equal_nan=True)
