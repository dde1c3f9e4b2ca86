"""Counter-based random numbers inside Numba: Philox 4x32-7 on vectors of edges.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011). A number
depends on its edge, head, seed and offset alone, so that backward draws the forward's mask anew.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.extending import intrinsic

from gnn_backend.runtime.cpu_vector import splat_value, suffix

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 7
_LOW = 0xFFFFFFFF
_BITS = 8  # of the 32 are dropped: the rest is a float32 in [0, 1) without rounding

_i32, _i64 = ir.IntType(32), ir.IntType(64)


def _edge_numbers(builder: Any, ids: Any, first: Any, k: Any, count: Any, width: int) -> Any:
    """Numbers of ``width`` edges from position ``k`` on; 0 from position ``count`` on."""
    wide = ir.VectorType(_i64, width)
    lane = ir.Constant(wide, list(range(width)))
    position = builder.add(splat_value(builder, k, width), lane)
    if ids is None:
        return builder.add(splat_value(builder, first, width), position)
    mask = builder.icmp_signed("<", position, splat_value(builder, count, width))
    vector = ir.VectorType(ids.type.pointee, width)
    address = builder.bitcast(builder.gep(ids, [k]), vector.as_pointer())
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(vector, [address.type, _i32, mask.type, vector]),
        f"llvm.masked.load.{suffix(vector)}.p0",
    )
    align = _i32(ids.type.pointee.width // 8)
    numbers = builder.call(function, [address, align, mask, ir.Constant(vector, None)])
    return numbers if vector == wide else builder.sext(numbers, wide)


def _philox(builder: Any, counter: list[Any], seed: Any) -> list[Any]:
    """Seven rounds; every 32-bit word lies in a lane of 64 bits, whose upper half is 0."""
    width = counter[0].type.count

    def constant(value: int) -> Any:
        return ir.Constant(counter[0].type, [value] * width)

    c0, c1, c2, c3 = counter
    keys = [builder.and_(seed, _i64(_LOW)), builder.lshr(seed, _i64(32))]
    for _ in range(_ROUNDS):
        left = builder.mul(c0, constant(_MULTIPLIERS[0]))
        right = builder.mul(c2, constant(_MULTIPLIERS[1]))
        k0, k1 = (splat_value(builder, key, width) for key in keys)
        c0 = builder.xor(builder.xor(builder.lshr(right, constant(32)), c1), k0)
        c2 = builder.xor(builder.xor(builder.lshr(left, constant(32)), c3), k1)
        c1, c3 = (builder.and_(product, constant(_LOW)) for product in (right, left))
        keys = [
            builder.and_(builder.add(key, _i64(step)), _i64(_LOW))
            for key, step in zip(keys, _KEY_STEPS, strict=True)
        ]
    return [c0, c1, c2, c3]


@intrinsic
def philox_keep(
    typingctx: Any,
    like: Any,
    ids: Any,
    first: Any,
    k: Any,
    count: Any,
    counters: Any,
    threshold: Any,
    scale: Any,
) -> Any:
    """What dropout multiplies the weights of some edges by, for four heads in turn: 0 or ``scale``.

    Parameters
    ----------
    like : Vector
        Gives the number of edges and the type of the factors.
    ids : pointer to integers, or None
        Numbers of the edges; None for ``first, first + 1, ...``.
    first, k, count : integer
        Number of the first edge, and the positions from which and up to which edges are read.
    counters : (head // 4, offset, seed)
    threshold : integer
        An edge is kept if the upper 24 bits of its random word are at least this.
    scale : number

    Returns
    -------
    tuple of four vectors typed as ``like``
    """
    result = types.UniTuple(like, 4)
    sig = result(
        like, ids, types.int64, types.int64, types.int64,
        types.UniTuple(types.int64, 3), types.int64, like.dtype,
    )  # fmt: skip

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, ids_value, first_, k_, count_, counters_, threshold_, scale_ = args
        width = like.width
        source = None if ids == types.none else ids_value
        edges = _edge_numbers(builder, source, first_, k_, count_, width)
        group, offset, seed = cgutils.unpack_tuple(builder, counters_, 3)
        low = ir.Constant(edges.type, [_LOW] * width)
        counter = [
            builder.and_(edges, low),
            builder.lshr(edges, ir.Constant(edges.type, [32] * width)),
            splat_value(builder, builder.and_(group, _i64(_LOW)), width),
            splat_value(builder, builder.and_(offset, _i64(_LOW)), width),
        ]
        limit = splat_value(builder, threshold_, width)
        kept, dropped = splat_value(builder, scale_, width), context.get_constant_null(like)
        factors = []
        for word in _philox(builder, counter, seed):
            bits = builder.lshr(word, ir.Constant(word.type, [_BITS] * width))
            chosen = builder.icmp_signed(">=", bits, limit)
            factors.append(builder.select(chosen, kept, dropped))
        return context.make_tuple(builder, sig.return_type, factors)

    return sig, lower
