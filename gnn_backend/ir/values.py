"""Values of a program: typed, in single-assignment form, each made once.

A value is an operator on other values; it has a domain (what it has one row for) and the shape of a
row. There are no implicit conversions: operators that combine values take them in one domain, and
:func:`gather` reads a value of a coarser domain in a finer one. Values are interned, so that equal
expressions are one object: common subexpressions need no pass of their own, and ``is`` compares.

Rows broadcast from the left: a score ``[H]`` scales rows ``[H, D]``. Of two dimensions that meet,
either may be 1.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from gnn_backend.errors import invalid
from gnn_backend.ir.domains import Domain, join, reads

Shape = tuple[int, ...]

#: Operators on one value, element by element; the arguments they take besides.
UNARY: dict[str, tuple[str, ...]] = {
    "neg": (), "exp": (), "log": (), "sqrt": (), "reciprocal": (), "tanh": (), "sigmoid": (),
    "relu": (),
    "leaky_relu": ("slope",),
    "slope": ("slope",),  # derivative of leaky_relu: 1 where the value is positive, else the slope
}  # fmt: skip
#: Operators on two values, element by element. ``equal`` and ``greater`` give 1 or 0.
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "equal", "greater")
#: Reductions; of no row sum and mean are 0, lse and max are -inf, min is inf. lse: log-sum-exp.
REDUCTIONS = ("sum", "mean", "max", "min", "lse")

_made: weakref.WeakValueDictionary[tuple[object, ...], Value] = weakref.WeakValueDictionary()
_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class Value:
    """One value of a program; make it with the functions of this module.

    Attributes
    ----------
    op : str
        ``input``, ``const``, ``gather``, a name of ``UNARY`` or ``BINARY``, ``dot``, ``outer``,
        ``linear``, ``weight_grad``, ``matmul``, ``row_sum``, ``transpose``, ``concat``, ``slice``,
        ``reshape``, ``degree``, ``reduce``.
    args : tuple of Value
    domain : Domain
    shape : tuple of int
        Of one row.
    attrs : mapping of str to str, float, int or tuple
        What the operator takes besides.
    """

    op: str
    args: tuple[Value, ...]
    domain: Domain
    shape: Shape
    attrs: Mapping[str, object] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Elements of a row."""
        return prod(self.shape)

    def __repr__(self) -> str:
        more = [f"{k}={v!r}" for k, v in self.attrs.items()]
        return f"{self.op}({', '.join(more)}) : {self.domain.value} {list(self.shape)}"


def make(op: str, args: Sequence[Value], domain: Domain, shape: Shape, **attrs: object) -> Value:
    """The value of an operator, the same object for the same arguments; nothing is checked."""
    key = (op, tuple(map(id, args)), domain, shape, tuple(sorted(attrs.items())))
    with _lock:
        found = _made.get(key)
        if found is None:
            found = _made[key] = Value(op, tuple(args), domain, tuple(shape), attrs)
        return found


def input_value(name: str, domain: Domain, shape: Shape) -> Value:
    """What a caller gives."""
    return make("input", (), domain, shape, name=name)


def const(value: float, shape: Shape = ()) -> Value:
    """A number, or a row filled with it."""
    return make("const", (), Domain.PARAM, tuple(shape), value=float(value))


def degree(domain: Domain) -> Value:
    """Edges of each row of ``domain``, as a number; the graph knows it."""
    return make("degree", (), domain, ())


def gather(x: Value, to: Domain) -> Value:
    """Read ``x`` in a finer domain: each of its rows reads the row of ``x`` that it belongs to."""
    if x.domain is to:
        return x
    if not reads(to, x.domain):
        raise invalid("to", f"cannot read {x.domain.value} rows", to.value,
                      f"a domain that knows its {x.domain.value}")  # fmt: skip
    if x.op == "gather" and x.domain is not Domain.NODE_TYPE:
        inner = x.args[0]
        if inner.domain is not Domain.NODE_TYPE:  # else by which end would be lost
            return gather(inner, to)
    return make("gather", (x,), to, x.shape)


def lift(values: Sequence[Value], at_least: Iterable[Domain] = ()) -> tuple[Value, ...]:
    """The values, all read in the coarsest domain that can read them."""
    domain = join([*(v.domain for v in values), *at_least])
    return tuple(gather(v, domain) for v in values)


def broadcast(a: Shape, b: Shape) -> Shape:
    """Shape of an element-by-element operator, aligned from the left.

    Raises
    ------
    InvalidArgument
        The shapes do not fit.
    """
    rank = max(len(a), len(b))
    pairs = zip(a + (1,) * (rank - len(a)), b + (1,) * (rank - len(b)), strict=True)
    out = []
    for m, n in pairs:
        if m != n and 1 not in (m, n):
            raise invalid("shapes of rows", "do not fit", f"{list(a)} and {list(b)}",
                          "equal, or 1, dimension by dimension from the left")  # fmt: skip
        out.append(n if m == 1 else m)
    return tuple(out)


def _same_domain(what: str, *values: Value) -> Domain:
    domains = {v.domain for v in values}
    if len(domains) != 1:
        got = ", ".join(sorted(d.value for d in domains))
        raise invalid(what, "in different domains", got, "one domain; use lift")
    return values[0].domain


def unary(op: str, x: Value, **attrs: float) -> Value:
    """An operator of ``UNARY``."""
    if op not in UNARY or tuple(attrs) != UNARY[op]:
        raise invalid("op", "unknown, or other arguments", (op, attrs), f"one of {UNARY}")
    return make(op, (x,), x.domain, x.shape, **attrs)


def binary(op: str, a: Value, b: Value) -> Value:
    """An operator of ``BINARY`` on values of one domain."""
    if op not in BINARY:
        raise invalid("op", "unknown", op, f"one of {', '.join(BINARY)}")
    return make(op, (a, b), _same_domain(op, a, b), broadcast(a.shape, b.shape))


def dot(a: Value, b: Value) -> Value:
    """Sum of products along the last dimension, [..., D] and [..., D] to [...]."""
    domain = _same_domain("dot", a, b)
    if not a.shape or len(a.shape) != len(b.shape) or a.shape[-1] != b.shape[-1]:
        raise invalid("dot", "rows do not fit", f"{list(a.shape)} and {list(b.shape)}",
                      "as many dimensions, the last of the same length")  # fmt: skip
    return make("dot", (a, b), domain, broadcast(a.shape[:-1], b.shape[:-1]))


def outer(a: Value, b: Value) -> Value:
    """Products of all pairs, [..., I] and [..., O] to [..., I, O]."""
    domain = _same_domain("outer", a, b)
    if not a.shape or len(a.shape) != len(b.shape):
        raise invalid("outer", "rows do not fit", f"{list(a.shape)} and {list(b.shape)}",
                      "as many dimensions, one or more")  # fmt: skip
    lead = broadcast(a.shape[:-1], b.shape[:-1])
    return make("outer", (a, b), domain, (*lead, a.shape[-1], b.shape[-1]))


#: Domains that have a weight a row.
TYPES = (Domain.PARAM, Domain.NODE_TYPE, Domain.EDGE_TYPE)


def linear(x: Value, weight: Value, *, transposed: bool = False) -> Value:
    """Product of each row with the weight of its type, which is not gathered.

    Parameters
    ----------
    x : Value, rows [..., I]
    weight : Value of a type, or a parameter
        [I, O] for all heads of a row, or [H, I, O] with x [H, I]; with ``transposed`` the last two
        are exchanged.
    """
    if weight.domain not in TYPES or not reads(x.domain, weight.domain):
        raise invalid("weight", "wrong domain", weight.domain.value,
                      f"a parameter, or of a type that a {x.domain.value} has")  # fmt: skip
    if len(weight.shape) not in (2, 3) or not x.shape:
        raise invalid("weight", "wrong shape", list(weight.shape), "[I, O] or [H, I, O]")
    heads, (inner, outward) = weight.shape[:-2], weight.shape[-2:]
    if transposed:
        inner, outward = outward, inner
    if x.shape[-1] != inner or (heads and (len(x.shape) != 2 or x.shape[0] != heads[0])):
        raise invalid("x", "rows do not fit the weight", list(x.shape),
                      f"rows [{'H' if heads else '...'}, {inner}]")  # fmt: skip
    shape = (*x.shape[:-1], outward)
    return make("linear", (x, weight), x.domain, shape, transposed=transposed)


def weight_grad(x: Value, grad: Value, to: Domain, *, heads: bool = False) -> Value:
    """Gradient of a weight of :func:`linear`: for each type the sum of outer(x, grad) of its rows.

    [..., I] and [..., O] to [I, O], or with ``heads`` [H, I] and [H, O] to [H, I, O].
    """
    domain = _same_domain("weight_grad", x, grad)
    if to not in TYPES or not reads(domain, to) or x.shape[:-1] != grad.shape[:-1]:
        raise invalid("weight_grad", "does not fit", f"{x} and {grad} to {to.value}",
                      "rows [..., I] and [..., O] of one domain, and its type")  # fmt: skip
    lead = x.shape[:1] if heads else ()
    return make("weight_grad", (x, grad), to, (*lead, x.shape[-1], grad.shape[-1]), heads=heads)


def matmul(a: Value, b: Value) -> Value:
    """Matrix product of rows [..., I, K] and [..., K, O], of parameters or types."""
    domain = _same_domain("matmul", a, b)
    if len(a.shape) < 2 or len(a.shape) != len(b.shape) or a.shape[-1] != b.shape[-2]:
        raise invalid("matmul", "rows do not fit", f"{list(a.shape)} and {list(b.shape)}",
                      "[..., I, K] and [..., K, O]")  # fmt: skip
    lead = broadcast(a.shape[:-2], b.shape[:-2])
    return make("matmul", (a, b), domain, (*lead, a.shape[-2], b.shape[-1]))


def row_sum(x: Value, dim: int) -> Value:
    """Sum of a row along one of its dimensions, which goes."""
    if not -len(x.shape) <= dim < len(x.shape):
        raise invalid("dim", "out of range", dim, f"a dimension of {list(x.shape)}")
    dim %= len(x.shape)
    return make("row_sum", (x,), x.domain, (*x.shape[:dim], *x.shape[dim + 1 :]), dim=dim)


def transpose(x: Value) -> Value:
    """Rows [..., I, O] to [..., O, I]."""
    if len(x.shape) < 2:
        raise invalid("x", "wrong shape", list(x.shape), "[..., I, O]")
    if x.op == "transpose":
        return x.args[0]
    return make("transpose", (x,), x.domain, (*x.shape[:-2], x.shape[-1], x.shape[-2]))


def concat(*values: Value) -> Value:
    """Rows one after the other along the last dimension."""
    domain = _same_domain("concat", *values)
    if len({v.shape[:-1] for v in values}) != 1 or not values[0].shape:
        raise invalid("concat", "rows do not fit", [list(v.shape) for v in values],
                      "equal but for the last dimension")  # fmt: skip
    shape = (*values[0].shape[:-1], sum(v.shape[-1] for v in values))
    return make("concat", values, domain, shape)


def part(x: Value, start: int, stop: int, dim: int = -1) -> Value:
    """Columns ``start`` to ``stop`` of the last dimension, or of another one."""
    dim %= max(1, len(x.shape))
    if not x.shape or not 0 <= start < stop <= x.shape[dim]:
        raise invalid("start, stop", "out of range", (start, stop), f"within {list(x.shape)}")
    if (start, stop) == (0, x.shape[dim]):
        return x
    shape = (*x.shape[:dim], stop - start, *x.shape[dim + 1 :])
    return make("slice", (x,), x.domain, shape, start=start, stop=stop, dim=dim)


def reshape(x: Value, shape: Shape) -> Value:
    """Rows in another shape."""
    if prod(shape) != x.size:
        raise invalid("shape", "another number of elements", list(shape), f"{x.size} in all")
    if x.shape == tuple(shape):
        return x
    inner = x.args[0] if x.op == "reshape" else x
    return inner if inner.shape == tuple(shape) else make("reshape", (inner,), x.domain, shape)


def reduce(how: str, x: Value, to: Domain) -> Value:
    """Reduce the rows of ``x`` that belong to each row of a coarser domain, element by element."""
    if how not in REDUCTIONS:
        raise invalid("how", "unknown", how, f"one of {', '.join(REDUCTIONS)}")
    if not reads(x.domain, to) or x.domain is to:
        raise invalid("to", f"{x.domain.value} rows do not belong to it", to.value,
                      f"coarser than {x.domain.value}")  # fmt: skip
    return make("reduce", (x,), to, x.shape, how=how)


@dataclass(frozen=True)
class Program:
    """Outputs, and the inputs they may be made of.

    Attributes
    ----------
    inputs : tuple of Value
        Operator ``input``, in the caller's order; not all need be used.
    outputs : tuple of Value
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    def values(self) -> list[Value]:
        """Every value that an output is made of, each after its arguments."""
        found: dict[Value, None] = {}
        stack: list[tuple[Value, Iterator[Value]]] = []
        for output in self.outputs:
            stack.append((output, iter(output.args)))
            while stack:
                value, rest = stack[-1]
                if value in found:
                    stack.pop()
                    continue
                following = next((arg for arg in rest if arg not in found), None)
                if following is None:
                    found[value] = None
                    stack.pop()
                else:
                    stack.append((following, iter(following.args)))
        return list(found)

    def consumers(self) -> dict[Value, list[Value]]:
        """Of every value those that have it as an argument, once each; none of a mere output."""
        found: dict[Value, list[Value]] = {value: [] for value in self.values()}
        for value in found:
            for arg in dict.fromkeys(value.args):
                found[arg].append(value)
        return found

    def __str__(self) -> str:
        """One line a value, as ``%3 = linear(%1, %2) : (source, edge type) [64]``."""
        numbers: dict[Value, str] = {}
        lines: list[str] = []
        for value in self.values():
            if value.op == "input":
                numbers[value] = f"%{value.attrs['name']}"
                continue
            numbers[value] = f"%{len(lines)}"
            attrs = [f"{k}={v}" for k, v in value.attrs.items() if v is not False]
            inside = ", ".join([*(numbers[a] for a in value.args), *attrs])
            kind = f"{value.domain.value} {list(value.shape)}"
            lines.append(f"{numbers[value]} = {value.op}({inside}) : {kind}")
        given = [f"{numbers.get(v, v.attrs['name'])} : {v.domain.value} {list(v.shape)}"
                 for v in self.inputs]  # fmt: skip
        outputs = ", ".join(numbers[v] for v in self.outputs)
        return "\n".join([*(f"input {line}" for line in given), *lines, f"return {outputs}"])


def rebuild(value: Value, args: Sequence[Value]) -> Value:
    """The same operator on other arguments of the same domains and shapes of rows."""
    if all(a is b for a, b in zip(value.args, args, strict=True)):
        return value
    return make(value.op, args, value.domain, value.shape, **value.attrs)


def rewrite(program: Program, rule: Callable[[Value, tuple[Value, ...]], Value | None]) -> Program:
    """Replace values from the inputs on.

    Parameters
    ----------
    program : Program
    rule : callable (value, new arguments) -> Value or None
        What takes the place of a value whose arguments have been replaced; None: the same operator.
        Its domain and shape must be those of the value.
    """
    new: dict[Value, Value] = {}
    for value in program.values():
        args = tuple(new[a] for a in value.args)
        found = rule(value, args)
        new[value] = rebuild(value, args) if found is None else found
    return Program(program.inputs, tuple(new[v] for v in program.outputs))
