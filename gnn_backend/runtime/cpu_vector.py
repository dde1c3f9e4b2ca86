"""SIMD vectors inside Numba: a vector type, its arithmetic, reductions and exponential.

Numba relies on LLVM to find vector code in scalar loops, which fails or falls back to run-time
alias checks in exactly the loops that matter here. This module gives Numba code a vector type of
a chosen width; LLVM maps it to the registers that the processor has. Operators work lane by
lane, and between a vector and a number.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.extending import intrinsic, models, register_model
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature


def _vector_bytes() -> int:
    try:
        features = llvm.get_host_cpu_features()
    except RuntimeError:  # unknown to LLVM on this platform
        return 32
    return 64 if features.get("avx512f") else 32


VECTOR_BYTES = _vector_bytes()  # of a register; 32 where they are narrower still


class Vector(types.Type):
    """Type of ``width`` lanes of ``dtype`` held in registers."""

    def __init__(self, dtype: types.Type, width: int) -> None:
        self.dtype = dtype
        self.width = width
        super().__init__(name=f"Vector({dtype}, {width})")


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    """A vector is one LLVM vector value."""

    def __init__(self, dmm: Any, fe_type: Vector) -> None:
        element = (
            ir.IntType(1) if fe_type.dtype == types.boolean else dmm[fe_type.dtype].get_value_type()
        )
        super().__init__(dmm, fe_type, ir.VectorType(element, fe_type.width))


def splat_value(builder: Any, scalar: Any, width: int) -> Any:
    """Repeat an LLVM scalar over the lanes of a new vector."""
    i32 = ir.IntType(32)
    vector = ir.VectorType(scalar.type, width)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, i32(0))
    zeros = ir.Constant(ir.VectorType(i32, width), [0] * width)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)


def is_mask(ty: types.Type) -> bool:
    """Whether ``ty`` is a vector of booleans."""
    return isinstance(ty, Vector) and ty.dtype == types.boolean


# Arithmetic ----------------------------------------------------------------------------------


def _register_operator(op: Callable, instruction: str, comparison: bool = False) -> None:
    @infer_global(op)
    class VectorOperator(AbstractTemplate):
        def generic(self, args: tuple, kws: dict) -> Any:
            vectors = [a for a in args if isinstance(a, Vector)]
            if not vectors or len(args) != 2:
                return None
            kind = vectors[0]
            if any(not isinstance(a, (Vector, types.Number)) for a in args) or is_mask(kind):
                return None
            result = Vector(types.boolean, kind.width) if comparison else kind
            return signature(result, *(a if isinstance(a, Vector) else kind.dtype for a in args))

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        width = next(a.width for a in sig.args if isinstance(a, Vector))
        left, right = (
            value if isinstance(ty, Vector) else splat_value(builder, value, width)
            for ty, value in zip(sig.args, args, strict=True)
        )
        if comparison:
            return builder.fcmp_ordered(instruction, left, right)
        return getattr(builder, instruction)(left, right)

    for pair in ((Vector, Vector), (Vector, types.Float), (types.Float, Vector)):
        lower_builtin(op, *pair)(lower)


for _operators, _instruction in (
    ((operator.add, operator.iadd), "fadd"),
    ((operator.sub, operator.isub), "fsub"),
    ((operator.mul, operator.imul), "fmul"),
    ((operator.truediv, operator.itruediv), "fdiv"),
):
    for _operator in _operators:
        _register_operator(_operator, _instruction)
_register_operator(operator.gt, ">", comparison=True)
_register_operator(operator.lt, "<", comparison=True)
_register_operator(operator.eq, "==", comparison=True)


@intrinsic
def above_or_nan(typingctx: Any, value: Any, best: Any) -> Any:
    """Where ``value`` is larger than ``best``, or the first NaN."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        known = builder.fcmp_ordered("ord", args[1], args[1])
        return builder.and_(builder.fcmp_unordered(">", *args), known)

    return Vector(types.boolean, value.width)(value, best), lower


@intrinsic
def as_is(typingctx: Any, vector: Any) -> Any:
    """The vector itself: no rounding."""
    return vector(vector), lambda context, builder, sig, args: args[0]


@intrinsic
def to_half(typingctx: Any, vector: Any) -> Any:
    """Every lane rounded to the nearest float16."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        half = ir.VectorType(ir.HalfType(), vector.width)
        return builder.fpext(builder.fptrunc(args[0], half), args[0].type)

    return vector(vector), lower


@intrinsic
def to_bfloat(typingctx: Any, vector: Any) -> Any:
    """Every lane, float32, rounded to the nearest bfloat16."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        integers = ir.VectorType(ir.IntType(32), vector.width)

        def number(value: int) -> Any:
            return ir.Constant(integers, [value] * vector.width)

        bits = builder.bitcast(args[0], integers)
        odd = builder.and_(builder.lshr(bits, number(16)), number(1))  # ties go to even
        rounded = builder.add(bits, builder.add(odd, number(0x7FFF)))
        result = builder.bitcast(builder.and_(rounded, number(-0x10000)), args[0].type)
        known = builder.fcmp_ordered("ord", args[0], args[0])
        return builder.select(known, result, args[0])

    return vector(vector), lower


@intrinsic
def where(typingctx: Any, mask: Any, left: Any, right: Any) -> Any:
    """``left`` where ``mask``, else ``right``, lane by lane; numbers are repeated.

    Of two numbers the right one decides the lane type, so that the left may be a literal.
    """
    kind = next((t for t in (left, right) if isinstance(t, Vector)), None)
    if kind is None:
        kind = Vector(right, mask.width)
    sig = kind(mask, left, right)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        chosen, *values = args
        values = [
            value
            if isinstance(ty, Vector)
            else splat_value(builder, context.cast(builder, value, ty, kind.dtype), kind.width)
            for ty, value in zip(sig.args[1:], values, strict=True)
        ]
        return builder.select(chosen, *values)

    return sig, lower


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` with one rounding."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = list(args)
        if isinstance(c, Vector):
            values = [
                v if isinstance(t, Vector) else splat_value(builder, v, c.width)
                for t, v in zip(sig.args, values, strict=True)
            ]
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(values[2].type, [values[2].type] * 3),
            f"llvm.fma.{suffix(values[2].type)}",
        )
        return builder.call(function, values)

    element = c.dtype if isinstance(c, Vector) else c
    return c(*(t if isinstance(t, Vector) else element for t in (a, b, c))), lower


def suffix(ty: Any) -> str:
    """How LLVM names a type in the names of its intrinsics."""
    if isinstance(ty, ir.VectorType):
        return f"v{ty.count}{suffix(ty.element)}"
    if isinstance(ty, ir.IntType):
        return f"i{ty.width}"
    return {"float": "f32", "double": "f64"}[str(ty)]


def _shuffle(builder: Any, left: Any, right: Any, picks: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(picks)), picks)
    return builder.shuffle_vector(left, right, mask)


def _halve(builder: Any, value: Any) -> Any:
    """Add the upper half of the lanes to the lower half."""
    half = value.type.count // 2
    undefined = ir.Constant(value.type, ir.Undefined)
    low = _shuffle(builder, value, undefined, list(range(half)))
    return builder.fadd(low, _shuffle(builder, value, undefined, list(range(half, 2 * half))))


def _merge_halves(builder: Any, left: Any, right: Any, group: int) -> Any:
    """Halve two vectors of sums at once: each group of lanes holds the lanes of one sum."""
    width, half = left.type.count, group // 2
    groups = [range(start, start + group) for start in range(0, 2 * width, group)]
    low = [lane for g in groups for lane in g[:half]]
    high = [lane for g in groups for lane in g[half:]]
    return builder.fadd(_shuffle(builder, left, right, low), _shuffle(builder, left, right, high))


@intrinsic
def total(typingctx: Any, vector: Any) -> Any:
    """Sum of the lanes, added pairwise in a fixed order."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (value,) = args
        while value.type.count > 1:
            value = _halve(builder, value)
        return builder.extract_element(value, ir.IntType(32)(0))

    return vector.dtype(vector), lower


@intrinsic
def greatest(typingctx: Any, vector: Any) -> Any:
    """Largest lane, where none is NaN."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (value,) = args
        while value.type.count > 1:
            half, undefined = value.type.count // 2, ir.Constant(value.type, ir.Undefined)
            low = _shuffle(builder, value, undefined, list(range(half)))
            high = _shuffle(builder, value, undefined, list(range(half, 2 * half)))
            value = builder.select(builder.fcmp_ordered(">", low, high), low, high)
        return builder.extract_element(value, ir.IntType(32)(0))

    return vector.dtype(vector), lower


@intrinsic
def totals(typingctx: Any, first: Any, second: Any, third: Any, fourth: Any) -> Any:
    """The four ``total`` as one vector, in a third of the instructions, the same bit for bit."""
    width = VECTOR_BYTES * 8 // first.dtype.bitwidth
    kind = Vector(first.dtype, 4)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        sums = list(args)
        while sums[0].type.count > width:
            sums = [_halve(builder, value) for value in sums]
        group = width
        while len(sums) > 1:
            pairs = zip(sums[::2], sums[1::2], strict=True)
            sums = [_merge_halves(builder, left, right, group) for left, right in pairs]
            group //= 2
        (value,) = sums
        undefined = ir.Constant(value.type, ir.Undefined)
        while group > 1:
            groups = [range(start, start + group) for start in range(0, 4 * group, group)]
            low = [lane for g in groups for lane in g[: group // 2]]
            high = [lane for g in groups for lane in g[group // 2 :]]
            undefined = ir.Constant(value.type, ir.Undefined)
            value = builder.fadd(
                _shuffle(builder, value, undefined, low), _shuffle(builder, value, undefined, high)
            )
            group //= 2
        return value

    return kind(first, second, third, fourth), lower


@intrinsic
def halves(typingctx: Any, vector: Any) -> Any:
    """The lower and the upper half of the lanes."""
    kind = Vector(vector.dtype, vector.width // 2)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        undefined = ir.Constant(args[0].type, ir.Undefined)
        parts = [
            _shuffle(builder, args[0], undefined, list(range(start, start + kind.width)))
            for start in (0, kind.width)
        ]
        return context.make_tuple(builder, sig.return_type, parts)

    return types.UniTuple(kind, 2)(vector), lower


# Vectors of a given width ----------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def zeros(typingctx: Any, token: Any, registers: Any) -> Any:
    """A vector of zeros that fills ``registers`` (a constant) of ``VECTOR_BYTES`` each."""
    if not isinstance(registers, types.IntegerLiteral):
        return None
    width = VECTOR_BYTES * 8 // token.dtype.bitwidth * registers.literal_value
    kind = Vector(token.dtype, width)
    return kind(token, registers), lambda context, *_: context.get_constant_null(kind)


@intrinsic
def single(typingctx: Any, token: Any) -> Any:
    """A vector of one lane, 0: what is written for vectors serves a scalar."""
    kind = Vector(token.dtype, 1)
    return kind(token), lambda context, *_: context.get_constant_null(kind)


@intrinsic
def lanes(typingctx: Any, like: Any) -> Any:
    """Number of lanes of a vector, a compile-time constant."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.IntType(64)(like.width)

    return types.int64(like), lower


@intrinsic
def first_lanes(typingctx: Any, count: Any, like: Any) -> Any:
    """Mask whose first ``count`` lanes are active."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i64 = ir.IntType(64)
        lane = ir.Constant(ir.VectorType(i64, like.width), list(range(like.width)))
        return builder.icmp_signed("<", lane, splat_value(builder, args[0], like.width))

    return Vector(types.boolean, like.width)(types.int64, like), lower


@intrinsic
def active(typingctx: Any, vector: Any, mask: Any) -> Any:
    """``vector`` with inactive lanes set to 0."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if not is_mask(mask):
            return args[0]
        return builder.select(args[1], args[0], ir.Constant(args[0].type, [0.0] * vector.width))

    return vector(vector, mask), lower


# Exponential -----------------------------------------------------------------------------------

_EXP_COEFFICIENTS = (  # of (exp(r) - 1 - r) / r^2 on [-ln(2)/2, ln(2)/2], highest power first
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)


@intrinsic
def exponential(typingctx: Any, vector: Any) -> Any:
    """``exp`` of every lane; -inf gives 0, NaN gives NaN, subnormal results are kept.

    float32 is computed as ``2^n * exp(r)`` with ``n = round(x / ln 2)`` and ``|r| <= ln(2) / 2``,
    within 2 units in the last place; other widths call the C library.
    """

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if vector.dtype == types.float32:
            return _exp_float32(builder, args[0])
        return _call_unary(builder, "exp", args[0])

    return vector(vector), lower


@intrinsic
def logarithm(typingctx: Any, vector: Any) -> Any:
    """Natural logarithm of every lane, by the C library."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _call_unary(builder, "log", args[0])

    return vector(vector), lower


def _call_unary(builder: Any, name: str, value: Any) -> Any:
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(value.type, [value.type]),
        f"llvm.{name}.{suffix(value.type)}",
    )
    return builder.call(function, [value])


def _exp_float32(builder: Any, x: Any) -> Any:
    integers = ir.VectorType(ir.IntType(32), x.type.count)

    def number(value: float) -> Any:
        return ir.Constant(x.type, [value] * x.type.count)

    def integer(value: int) -> Any:
        return ir.Constant(integers, [value] * x.type.count)

    # Beyond these bounds the result is 0 or infinity anyway. The comparisons are false for
    # NaN, which therefore survives in x and in the polynomial, but not in the exponent.
    low, high = number(-104.0), number(89.0)
    x = builder.select(builder.fcmp_ordered("<", x, low), low, x)
    x = builder.select(builder.fcmp_ordered(">", x, high), high, x)
    n = _call_unary(builder, "rint", builder.fmul(x, number(1.4426950408889634)))
    r = builder.fsub(x, builder.fmul(n, number(0.693359375)))
    r = builder.fsub(r, builder.fmul(n, number(-2.12194440e-4)))
    poly = number(_EXP_COEFFICIENTS[0])
    for coefficient in _EXP_COEFFICIENTS[1:]:
        poly = builder.fadd(builder.fmul(poly, r), number(coefficient))
    poly = builder.fadd(builder.fmul(poly, builder.fmul(r, r)), builder.fadd(r, number(1.0)))
    bounded = builder.select(builder.fcmp_ordered("<", n, number(200.0)), n, number(200.0))
    exponent = builder.fptosi(bounded, integers)
    # 2^n in two factors: one would overflow its exponent field for subnormal results.
    half = builder.ashr(exponent, integer(1))
    for part in (half, builder.sub(exponent, half)):
        bits = builder.shl(builder.add(part, integer(127)), integer(23))
        poly = builder.fmul(poly, builder.bitcast(bits, x.type))
    return poly
