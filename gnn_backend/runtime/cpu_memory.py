"""Raw memory inside Numba: the arguments of a kernel, pointers, loads and stores of vectors.

Nothing is checked: callers own the arithmetic and keep the memory alive. A pointer that is not
given is None; loads from it are 0, stores to it and their computation vanish.

``mask`` arguments are ``None`` (all lanes are active) or the result of ``first_lanes``.
The same function body therefore serves full tiles and the ragged end of a row.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.extending import intrinsic

from gnn_backend.runtime.cpu_vector import Vector, is_mask, suffix

CACHE_LINE = 64


@intrinsic
def field(typingctx: Any, address: Any, index: Any, token: Any) -> Any:
    """Field ``index`` of the block of 8-byte values at ``address``.

    ``token`` is a Numba type, for a pointer to it; or an integer, for an integer; or None, for
    None: a pointer that is not given, on which all functions here do nothing.
    """
    result: types.Type = types.int64
    if token == types.none:
        result = types.none
    elif isinstance(token, types.NumberClass):
        result = types.CPointer(token.dtype)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if result == types.none:
            return context.get_dummy_value()
        fields = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        value = builder.load(builder.gep(fields, [args[1]]))
        if result == types.int64:
            return value
        return builder.inttoptr(value, context.get_value_type(result))

    return result(types.int64, types.int64, token), lower


@intrinsic
def call_block(typingctx: Any, function: Any, block: Any, address: Any) -> Any:
    """Call the C function at ``function`` with (block, address of the arguments)."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i64 = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [i64, i64]).as_pointer()
        builder.call(builder.inttoptr(args[0], kind), args[1:])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), lower


def _absent(result: types.Type, *args: types.Type) -> Any:
    """Signature and lowering of an access to a pointer that is None: zero, or nothing."""
    return result(*args), lambda context, builder, sig, values: context.get_constant_null(result)


@intrinsic
def shift(typingctx: Any, source: Any, offset: Any) -> Any:
    """The pointer ``source + offset``, in elements; None for None."""
    if source == types.none:
        return _absent(types.none, source, types.int64)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]])

    return source(source, types.int64), lower


@intrinsic
def optional(typingctx: Any, source: Any, token: Any) -> Any:
    """The pointer, or None where ``token`` is None: decided when compiled."""
    if token == types.none:
        return _absent(types.none, source, token)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return args[0]

    return source(source, token), lower


@intrinsic
def get(typingctx: Any, source: Any, offset: Any) -> Any:
    """The element ``source[offset]``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(builder.gep(args[0], [args[1]]))

    return source.dtype(source, types.int64), lower


@intrinsic
def put(typingctx: Any, target: Any, offset: Any, value: Any) -> Any:
    """Store the scalar ``value`` at ``target[offset]``."""
    if target == types.none:
        return _absent(types.none, target, types.int64, value)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[2], builder.gep(args[0], [args[1]]))
        return context.get_dummy_value()

    return types.none(target, types.int64, target.dtype), lower


def _vector_address(context: Any, builder: Any, base: Any, offset: Any, kind: Vector) -> Any:
    vector = ir.VectorType(context.get_value_type(kind.dtype), kind.width)
    return builder.bitcast(builder.gep(base, [offset]), vector.as_pointer())


@intrinsic
def load(typingctx: Any, source: Any, offset: Any, like: Any, mask: Any) -> Any:
    """A vector typed as ``like`` from ``source[offset:]``; inactive lanes are 0 and not read."""
    if source == types.none:
        return _absent(like, source, types.int64, like, mask)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = _vector_address(context, builder, args[0], args[1], like)
        align = context.get_abi_sizeof(context.get_value_type(like.dtype))
        if not is_mask(mask):
            return builder.load(address, align=align)
        vector = address.type.pointee
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(vector, [address.type, ir.IntType(32), args[3].type, vector]),
            f"llvm.masked.load.{suffix(vector)}.p0",
        )
        zero = ir.Constant(vector, None)
        return builder.call(function, [address, ir.IntType(32)(align), args[3], zero])

    return like(source, types.int64, like, mask), lower


@intrinsic
def store(typingctx: Any, target: Any, offset: Any, vector: Any, mask: Any) -> Any:
    """Write the active lanes of ``vector`` to ``target[offset:]``."""
    if target == types.none:
        return _absent(types.none, target, types.int64, vector, mask)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = _vector_address(context, builder, args[0], args[1], vector)
        align = context.get_abi_sizeof(context.get_value_type(vector.dtype))
        if is_mask(mask):
            function = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(
                    ir.VoidType(), [args[2].type, address.type, ir.IntType(32), args[3].type]
                ),
                f"llvm.masked.store.{suffix(args[2].type)}.p0",
            )
            builder.call(function, [args[2], address, ir.IntType(32)(align), args[3]])
        else:
            builder.store(args[2], address, align=align)
        return context.get_dummy_value()

    return types.none(target, types.int64, vector, mask), lower


@intrinsic
def prefetch(typingctx: Any, source: Any, offset: Any, like: Any) -> Any:
    """Ask for the cache lines of a vector typed as ``like`` at ``source[offset:]``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i32, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32]),
            "llvm.prefetch.p0",
        )
        start = builder.gep(args[0], [args[1]])
        size = like.width * like.dtype.bitwidth // 8
        for line in range(0, size, CACHE_LINE):
            element = ir.IntType(64)(line * 8 // like.dtype.bitwidth)
            address = builder.bitcast(builder.gep(start, [element]), byte)
            builder.call(function, [address, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.none(source, types.int64, like), lower
