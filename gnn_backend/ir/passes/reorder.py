"""Linear operator reordering: what is linear changes places where that leaves less to do.

Each rule is legal because its operators are linear and the weight is fixed by the type; what is
used elsewhere too stays alive, so that only what has one consumer changes places.

- *fold*: ``<x W[t], a[t]> = <x, W a[t]>``, ``(x W[t]) V = x (W V)[t]``: rows shrink from the width
  of W to that of the result;
- *transfer*: ``<k W[t], q> = <k, q W[t]^T>``, on the side that has fewer (node, edge type) pairs;
- *split*: ``[u, v] W = u W_1 + v W_2``, each for the rows of its own domain;
- *after* and *before*: products and sums (:mod:`around_sums`);
- *staged*: a sum over the edges of a type is that over the pairs of the type of their sums, where
  these are gone over in any case.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby

from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain, join, reads
from gnn_backend.ir.passes.around_sums import WORTH, after, before
from gnn_backend.ir.passes.patterns import Rule, Single, Sizes, Typed, applied, typed_of
from gnn_backend.ir.values import Program, Value

#: Rows that a transfer must leave at most: what it adds costs passes of its own.
TRANSFER_BELOW = 0.8


def reorder(program: Program, sizes: Sizes, reuse: Collection[Value] = ()) -> Program:
    """Apply the rules where they save rows or traffic.

    Parameters
    ----------
    program : Program
    sizes : mapping of Domain to int
        Rows of each domain.
    reuse : collection of Value
        What is stored in any case: to do without it saves nothing.
    """
    rules: tuple[Rule, ...] = (_fold, _transfer, _split, after, before)
    for one in rules:
        program = applied(program, sizes, one, reuse)
    return _staged(program)


# ------------------------------------------------------------------ fold


def _fold(value: Value, single: Single, sizes: Sizes) -> Value | None:
    if value.op == "linear":
        return _fold_linear(value, single)
    if value.op != "dot":
        return None
    for one, other in (value.args, value.args[::-1]):
        found = typed_of(one, single)
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


def _fold_dot(value: Value, found: Typed, vector: Value) -> Value | None:
    linear, weight = found.linear, found.weight
    if linear.attrs["transposed"] or not reads(weight.domain, vector.domain):
        return None
    vector = ir.gather(vector, weight.domain)
    if len(linear.shape) == 2 and found.gathered:
        return _fold_heads(value, linear, vector)
    if len(weight.shape) != 2 or len(linear.shape) != 1:
        return None
    rows = found.between[0].shape if found.between else linear.shape
    if any(b.op == "reshape" and b.shape != rows for b in found.between):
        return None
    inner = weight.shape[0]
    by_head = ir.reshape(weight, (inner, *rows))
    spread = ir.reshape(vector, (1, *vector.shape))
    folded = ir.row_sum(ir.binary("mul", by_head, spread), -1)  # [I], or [I, H]
    folded = ir.reshape(folded, (inner, max(1, folded.size // inner)))
    x = ir.linear(linear.args[0], folded)
    return ir.gather(ir.reshape(x, value.shape), value.domain)


def _fold_heads(value: Value, linear: Value, vector: Value) -> Value | None:
    """Rows of heads: no product is left, but a dot product of each head with its vector."""
    x, weight = linear.args
    if len(weight.shape) == 3:  # [H, I, O] and [H or 1, O]
        spread = ir.reshape(vector, (vector.shape[0], 1, vector.shape[1]))
        folded = ir.row_sum(ir.binary("mul", weight, spread), -1)
    else:
        folded = ir.matmul(vector, ir.transpose(weight))
    found = ir.dot(*ir.lift([x, folded], [linear.domain]))
    return ir.gather(found, value.domain) if found.shape == value.shape else None


def _fold_linear(value: Value, single: Single) -> Value | None:
    x, outer_weight = value.args
    found = typed_of(x, single)
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


def _transfer(value: Value, single: Single, sizes: Sizes) -> Value | None:
    if value.op != "dot":
        return None
    for one, other in (value.args, value.args[::-1]):
        found = typed_of(one, single)
        if found is None or other.op != "gather" or not found.gathered:
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


# ------------------------------------------------------------------ split


def _split(value: Value, single: Single, sizes: Sizes) -> Value | None:
    if value.op != "linear" or value.args[0].op != "concat" or not single(value.args[0]):
        return None
    x, weight = value.args
    pieces = [
        (domain, ir.concat(*same) if len(same) > 1 else same[0])
        for domain, same in (
            (domain, list(same))
            for domain, same in groupby(x.args, lambda piece: _own_domain(piece, weight))
        )
    ]
    if len(pieces) == 1:
        return None
    whole, outward = sizes[value.domain], value.size
    joined = whole * (3 * x.size + outward)  # rows are written before they are multiplied
    apart = sum(sizes[domain] * (piece.size + outward) for domain, piece in pieces)
    if apart + whole * outward * (len(pieces) - 1) > WORTH * joined:
        return None
    return _sum_of_products(value, [piece for _, piece in pieces])


def _own_domain(piece: Value, weight: Value) -> Domain:
    """The coarsest domain in which a piece can be multiplied."""
    if piece.op != "gather":
        return piece.domain
    try:
        return join([piece.args[0].domain, weight.domain])
    except ValueError:  # node types beside edge types
        return piece.domain


def _sum_of_products(value: Value, pieces: list[Value]) -> Value:
    weight, transposed = value.args[1], bool(value.attrs["transposed"])
    total, start = None, 0
    for piece in pieces:
        stop = start + piece.shape[-1]
        rows = ir.part(weight, start, stop, -1 if transposed else -2)
        term = ir.linear(piece, rows, transposed=transposed)
        total = term if total is None else ir.binary("add", total, term)
        start = stop
    assert total is not None
    return total


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
