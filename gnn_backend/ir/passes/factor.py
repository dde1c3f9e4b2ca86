"""Factoring out of sums: what is fixed by the row of a sum is multiplied after it.

``sum(s * c[row]) = c[row] * sum(s)``; and ``sum(alpha * <c[row], v>) = <c[row], sum(alpha * v)>``
where that sum is there already: in the gradient of a softmax-weighted sum it is the output itself,
which spares a pass over the edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain, reads
from gnn_backend.ir.passes.finite import is_finite
from gnn_backend.ir.products import factors_of
from gnn_backend.ir.values import Program, Value


def factor(program: Program, reuse: Collection[Value] = ()) -> Program:
    """Factor what is fixed by a sum's row out of it.

    Parameters
    ----------
    program : Program
    reuse : collection of Value
        What is stored in any case; the program's own sums are looked at as well.
    """
    known = _sums_by_factors([*program.values(), *reuse])

    def rule(value: Value, args: tuple[Value, ...]) -> Value | None:
        if value.op != "reduce" or value.attrs["how"] != "sum":
            return None
        return _reused(value, args[0], known) or _factored(value, args[0])

    return ir.rewrite(program, rule)


def _sums_by_factors(values: Iterable[Value]) -> dict[object, Value]:
    found: dict[object, Value] = {}
    for value in values:
        if value.op == "reduce" and value.attrs["how"] == "sum":
            found.setdefault(_key(value.domain, factors_of(value.args[0])), value)
    return found


def _key(domain: Domain, factors: list[Value]) -> object:
    return domain, frozenset(Counter(factors).items())


def _fixed(value: Value, row: Domain) -> Value | None:
    """A factor read in the domain of the sum's rows, if it is the same for all that are summed."""
    if value.op != "gather" or not reads(row, value.args[0].domain):
        return None
    return ir.gather(value.args[0], row) if is_finite(value) else None


def _reused(total: Value, x: Value, known: dict[object, Value]) -> Value | None:
    """A sum of dot products with the row, from the sum of what they are taken with."""
    factors = factors_of(x)
    for place, found in enumerate(factors):
        if found.op != "dot":
            continue
        others = factors[:place] + factors[place + 1 :]
        for one, other in (found.args, found.args[::-1]):
            outside = _fixed(one, total.domain)
            if outside is None:
                continue
            inner = known.get(_key(total.domain, [*others, other]))
            if inner is not None and len(inner.shape) == len(outside.shape):
                result = ir.dot(outside, inner)
                if result.shape == total.shape:
                    return result
    return None


def _factored(total: Value, x: Value) -> Value | None:
    if x.op == "gather":  # a sum of one value, as often as there are edges
        outside = _fixed(x, total.domain)
        if outside is None or x.domain is not Domain.EDGE or total.domain is Domain.NODE_TYPE:
            return None
        return ir.binary("mul", outside, ir.degree(total.domain))
    factors = factors_of(x)
    split = [(f, _fixed(f, total.domain)) for f in factors]
    fixed = [moved for _, moved in split if moved is not None]
    inside = [f for f, moved in split if moved is None]
    if not fixed or not inside:
        return None
    result = ir.reduce("sum", _product(inside), total.domain)
    result = _product([result, *fixed])
    return result if result.shape == total.shape else None


def _product(factors: list[Value]) -> Value:
    result = factors[0]
    for other in factors[1:]:
        result = ir.binary("mul", result, other)
    return result
