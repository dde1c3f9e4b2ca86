"""Linear operators before and after sums: ``sum (x W) s = (sum x s) W``.

A product before a sum goes over the rows that are summed, or over those that they read; after it,
over the rows of the sum. What is cheaper depends on the numbers of rows and on their widths, and is
decided by the numbers that either form reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.passes.patterns import Single, Sizes, scaled, scales, typed_of
from gnn_backend.ir.products import as_weighted, factors_of
from gnn_backend.ir.values import Value

#: Pairs of destinations to rows of the product below which its place is after the sum.
AFTER_BELOW = 0.6
#: Traffic that a change of places must leave at most: its steps have costs of their own.
WORTH = 0.8


def after(value: Value, single: Single, sizes: Sizes) -> Value | None:
    """A product of what is summed, done after the sum.

    With a weight for each edge type: the sum over a destination's edges is one over its pairs of
    the sums within them. A parameter needs no pairs, and follows the whole sum.
    """
    if not _is_sum(value) or as_weighted(value) is not None:
        return None  # a softmax of the row's own weights it along the way, in one pass
    factors = factors_of(value.args[0])
    for place, one in enumerate(factors):
        found = typed_of(one, single)
        if found is None or not found.gathered:
            continue
        linear, others = found.linear, factors[:place] + factors[place + 1 :]
        to = _sum_within(value, linear, sizes)
        if to is None or not all(scales(f, linear) for f in others):
            continue
        x = scaled(ir.gather(linear.args[0], value.args[0].domain), others)
        if x.shape != linear.args[0].shape:
            continue
        total = ir.linear(ir.reduce("sum", x, to), found.weight,
                          transposed=bool(linear.attrs["transposed"]))  # fmt: skip
        return total if to is value.domain else ir.reduce("sum", total, value.domain)
    return None


def _sum_within(value: Value, linear: Value, sizes: Sizes) -> Domain | None:
    """The domain whose sums are multiplied after; None: the product stays before."""
    elements, weight = value.args[0].domain, linear.args[1]
    if weight.domain is Domain.EDGE_TYPE:
        pairs = elements is Domain.EDGE and value.domain is Domain.DST
        few = sizes[Domain.DST_PAIR] < AFTER_BELOW * sizes[linear.domain]
        return Domain.DST_PAIR if pairs and few else None
    if weight.domain is not Domain.PARAM or value.domain not in (Domain.SRC, Domain.DST):
        return None
    inner, outward = linear.args[0].size, linear.size
    before = sizes[elements] * outward + sizes[linear.domain] * (inner + outward)
    then = sizes[elements] * inner + sizes[value.domain] * (inner + outward)
    return value.domain if then <= WORTH * before else None


# ------------------------------------------------------------------ before


@dataclass(frozen=True)
class _PairSum:
    """``reduce sum`` of edges to pairs, with factors that each pair has.

    Attributes
    ----------
    total : Value
    scales : tuple of (str, Value)
        Operator, ``mul`` or ``div``, and factor; the first is applied first.
    """

    total: Value
    scales: tuple[tuple[str, Value], ...]


def before(value: Value, single: Single, sizes: Sizes) -> Value | None:
    """A sum over pairs of sums or means within them, as one sum over edges.

    A product between the two is done for pairs of sources, where these are few.
    """
    if not _is_sum(value) or value.domain is not Domain.DST:
        return None
    x = value.args[0]
    if x.domain is not Domain.DST_PAIR or not single(x):
        return None
    linear = x if x.op == "linear" else None
    if linear is not None and linear.args[1].domain is not Domain.EDGE_TYPE:
        return None
    found = _pair_sum(x if linear is None else linear.args[0], single)
    if found is None or (linear is not None and not _fewer(found, linear, sizes)):
        return None
    message = found.total.args[0] if linear is None else _multiplied(found, linear)
    if message is None:
        return None
    for op, factor in found.scales:
        message = ir.binary(op, message, ir.gather(factor, Domain.EDGE))
    return ir.reduce("sum", message, Domain.DST) if message.shape == value.shape else None


def _is_sum(value: Value) -> bool:
    return value.op == "reduce" and value.attrs["how"] == "sum"


def _pair_sum(value: Value, single: Single) -> _PairSum | None:
    found: list[tuple[str, Value]] = []
    while single(value):
        if _is_sum(value):
            edges = value.args[0].domain is Domain.EDGE
            return _PairSum(value, tuple(reversed(found))) if edges else None
        if value.op not in ("mul", "div"):
            return None
        rows, factor = value.args
        if value.op == "mul" and scales(rows, value) and not scales(factor, value):
            rows, factor = factor, rows
        if rows.shape != value.shape or not scales(factor, value):
            return None
        found.append((value.op, factor))
        value = rows
    return None


def _fewer(found: _PairSum, linear: Value, sizes: Sizes) -> bool:
    """Whether the product at pairs of sources spares traffic, and will not be moved back."""
    edges, near, far = (sizes[d] for d in (Domain.EDGE, Domain.SRC_PAIR, Domain.DST_PAIR))
    if far < AFTER_BELOW * near:
        return False
    inner, outward = linear.args[0].size, linear.size
    scale = 1 if found.scales else 0
    # Sums, scaled in a pass of their own, multiplied, and summed again.
    twice = edges * inner + far * ((2 + 2 * scale) * inner + 2 * outward)
    once = edges * (outward + scale) + near * (inner + outward)
    return once <= WORTH * twice


def _multiplied(found: _PairSum, linear: Value) -> Value | None:
    """What is summed, its rows multiplied for each pair of a source."""
    factors = factors_of(found.total.args[0])
    for place, one in enumerate(factors):
        near = one.args[0] if one.op == "gather" else one
        others = factors[:place] + factors[place + 1 :]
        if near.domain not in (Domain.SRC, Domain.SRC_PAIR) or one.shape != found.total.shape:
            continue
        if all(scales(f, one) for f in others):
            rows = ir.gather(near, Domain.SRC_PAIR)
            product = ir.linear(rows, linear.args[1], transposed=bool(linear.attrs["transposed"]))
            return scaled(ir.gather(product, Domain.EDGE), others)
    return None
