"""Linear operator reordering: what is linear changes places where that leaves less to do.

Four rules, each legal because its operators are linear and the weight is fixed by the type:

- *fold*: ``<x W[t], a[t]> = x (W a)[t]``, ``(x W[t]) V = x (W V)[t]``, if the product between has
  no other consumer: rows shrink from the width of W to that of the result;
- *transfer*: ``<k W[t], q> = <k, q W[t]^T>``, on the side that has fewer (node, edge type) pairs;
- *after*: ``sum (x W[t]) s`` over the edges of a destination is the sum over its edge types of
  ``(sum x s) W[t]``, where there are fewer pairs of destinations than of sources;
- *staged*: a sum over the edges of a type is that over the pairs of the type of their sums, where
  these are gone over in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain, reads
from gnn_backend.ir.products import as_weighted, factors_of
from gnn_backend.ir.values import Program, Value

Sizes = Mapping[Domain, int]
#: Rows that a rule must save to be worth it: what it adds costs passes of its own.
TRANSFER_BELOW = 0.8
AFTER_BELOW = 0.6


@dataclass(frozen=True)
class _Typed:
    """``view(gather(linear(x, weight)))``: what the rules look for.

    Attributes
    ----------
    linear : Value
    between : tuple of Value
        From the product to the value itself, outermost first: gathers and reshapes.
    """

    linear: Value
    between: tuple[Value, ...]


def reorder(program: Program, sizes: Sizes) -> Program:
    """Apply the rules where they save rows.

    Parameters
    ----------
    program : Program
    sizes : mapping of Domain to int
        Rows of each domain.
    """
    for one in (_fold, _transfer, _after):
        program = _applied(program, sizes, one)
    return _staged(program)


_Rule = Callable[[Value, Callable[[Value], bool], Sizes], Value | None]


def _applied(program: Program, sizes: Sizes, one: _Rule) -> Program:
    consumers, outputs = program.consumers(), set(program.outputs)

    def single(value: Value) -> bool:
        return len(consumers[value]) == 1 and value not in outputs

    replaced: dict[Value, Value] = {}
    for value in program.values():
        found = one(value, single, sizes)
        if found is not None:
            replaced[value] = found
    if not replaced:
        return program

    def rule(value: Value, args: tuple[Value, ...]) -> Value | None:
        # A rule looked at what was there before; its result is made of that.
        return replaced.get(value)

    return ir.rewrite(program, rule)


def _typed(value: Value, single: Callable[[Value], bool]) -> _Typed | None:
    """The product of a value of this form that is used here alone."""
    between: list[Value] = []
    while value.op in ("gather", "reshape"):
        if not single(value):
            return None
        between.append(value)
        value = value.args[0]
    if value.op != "linear" or not single(value):
        return None
    return _Typed(value, tuple(between))


# ------------------------------------------------------------------ fold


def _fold(value: Value, single: Callable[[Value], bool], sizes: Sizes) -> Value | None:
    if value.op == "linear":
        return _fold_linear(value, single)
    if value.op != "dot":
        return None
    for one, other in (value.args, value.args[::-1]):
        found = _typed(one, single)
        vector = _of_type(other)
        if found is None or vector is None:
            continue
        folded = _fold_dot(value, found, vector)
        if folded is not None:
            return folded
    return None


def _of_type(value: Value) -> Value | None:
    """A value of types or a parameter, read by the rows of another domain."""
    inner = value.args[0] if value.op == "gather" else value
    return inner if inner.domain in ir.TYPES else None


def _fold_dot(value: Value, found: _Typed, vector: Value) -> Value | None:
    linear, weight = found.linear, found.linear.args[1]
    if linear.attrs["transposed"] or not reads(weight.domain, vector.domain):
        return None
    if len(weight.shape) != 2 or len(linear.shape) != 1:
        return None
    rows = found.between[0].shape if found.between else linear.shape
    if any(b.op == "reshape" and b.shape != rows for b in found.between):
        return None
    inner = weight.shape[0]
    by_head = ir.reshape(weight, (inner, *rows))
    vector = ir.gather(vector, weight.domain)
    spread = ir.reshape(vector, (1, *vector.shape))
    folded = ir.row_sum(ir.binary("mul", by_head, spread), -1)  # [I], or [I, H]
    folded = ir.reshape(folded, (inner, max(1, folded.size // inner)))
    x = ir.linear(linear.args[0], folded)
    return ir.gather(ir.reshape(x, value.shape), value.domain)


def _fold_linear(value: Value, single: Callable[[Value], bool]) -> Value | None:
    x, outer_weight = value.args
    found = _typed(x, single)
    if found is None or any(b.op == "reshape" for b in found.between):
        return None
    inner_weight = found.linear.args[1]
    ends = inner_weight.domain, outer_weight.domain
    if Domain.PARAM not in ends and ends[0] is not ends[1]:
        return None
    if len(inner_weight.shape) != 2 or len(outer_weight.shape) != 2 or len(value.shape) != 1:
        return None
    first, second = (
        ir.transpose(w) if v.attrs["transposed"] else w
        for v, w in ((found.linear, inner_weight), (value, outer_weight))
    )
    if second.shape[1] > first.shape[1]:
        return None  # wider rows of the first product than of the last alone
    weight = ir.matmul(*ir.lift([first, second]))
    source = found.linear.args[0]
    domain = found.linear.domain if reads(found.linear.domain, weight.domain) else value.domain
    return ir.gather(ir.linear(ir.gather(source, domain), weight), value.domain)


# ------------------------------------------------------------------ transfer


def _transfer(value: Value, single: Callable[[Value], bool], sizes: Sizes) -> Value | None:
    if value.op != "dot":
        return None
    for one, other in (value.args, value.args[::-1]):
        found = _typed(one, single)
        if (
            found is None
            or other.op != "gather"
            or not all(b.op == "gather" for b in found.between)
        ):
            continue
        weight, far = found.linear.args[1], other.args[0]
        pair = {Domain.SRC: Domain.SRC_PAIR, Domain.DST: Domain.DST_PAIR}.get(far.domain)
        if pair is None or weight.domain is not Domain.EDGE_TYPE:
            continue
        if sizes[pair] >= TRANSFER_BELOW * sizes[found.linear.domain]:
            continue
        turned = ir.linear(ir.gather(far, pair), weight,
                           transposed=not found.linear.attrs["transposed"])  # fmt: skip
        near = ir.gather(found.linear.args[0], value.domain)
        return ir.dot(near, ir.gather(turned, value.domain))
    return None


# ------------------------------------------------------------------ after


def _after(value: Value, single: Callable[[Value], bool], sizes: Sizes) -> Value | None:
    if value.op != "reduce" or value.attrs["how"] != "sum" or value.domain is not Domain.DST:
        return None
    factors = factors_of(value.args[0])
    if value.args[0].domain is not Domain.EDGE or as_weighted(value) is not None:
        return None  # a softmax of the row's own weights it along the way, in one pass
    for place, one in enumerate(factors):
        found = _typed(one, single)
        if found is None or not all(b.op == "gather" for b in found.between):
            continue
        linear, weight = found.linear, found.linear.args[1]
        others = factors[:place] + factors[place + 1 :]
        if weight.domain is not Domain.EDGE_TYPE or any(f.size != 1 for f in others):
            continue
        if sizes[Domain.DST_PAIR] >= AFTER_BELOW * sizes[linear.domain]:
            continue
        x = ir.gather(linear.args[0], Domain.EDGE)
        for other in others:
            x = ir.binary("mul", x, other)
        inside = ir.reduce("sum", x, Domain.DST_PAIR)
        mapped = ir.linear(inside, weight, transposed=bool(linear.attrs["transposed"]))
        return ir.reduce("sum", mapped, Domain.DST)
    return None


# ------------------------------------------------------------------ staged


def _staged(program: Program) -> Program:
    """Sums over edge types by way of pairs whose edges are summed anyway."""
    pairs = [
        v.domain for v in program.values()
        if v.op == "reduce" and v.args[0].domain is Domain.EDGE
        and v.domain in (Domain.SRC_PAIR, Domain.DST_PAIR)
    ]  # fmt: skip
    if not pairs:
        return program

    def rule(value: Value, args: tuple[Value, ...]) -> Value | None:
        typed = value.op == "reduce" and value.attrs["how"] == "sum"
        if not typed or value.domain is not Domain.EDGE_TYPE or args[0].domain is not Domain.EDGE:
            return None
        return ir.reduce("sum", ir.reduce("sum", args[0], pairs[0]), Domain.EDGE_TYPE)

    return ir.rewrite(program, rule)
