"""What both backward passes need of a chunk: weights, and the loss by each logit.

With m the factor of dropout (1 without), d = <grad_out, value> + <grad_out_edge, features> +
gradient of the weight, and delta the sum of weight * d over the row:
weight = m * softmax, slope = softmax * (m * d - delta).
"""

# mypy: disable-error-code=no-untyped-def

from collections import namedtuple

from gnn_backend.runtime.cpu_memory import get, load, optional, put, shift, store
from gnn_backend.runtime.cpu_vector import active, exponential, first_lanes, lanes, total, zeros
from gnn_backend.runtime.numba_templates.common import (
    DROPOUT,
    REAL,
    inline,
    neighbor,
)
from gnn_backend.runtime.numba_templates.gatv2 import logit_slope, term_slope
from gnn_backend.runtime.numba_templates.softmax_edges import (
    EDGES,
    add_edge_scalars,
    keep_factors,
    multiply,
)
from gnn_backend.runtime.numba_templates.softmax_logits import compute_products

# The table that is gathered, one row a neighbour, and the row it is multiplied with.
DotSide = namedtuple("DotSide", "table row")

Buffers = namedtuple("Buffers", "logits dots weights slopes bias keep terms")


@inline
def backward_buffers(buffer):
    """The buffers of a block."""
    return Buffers(
        buffer,
        shift(buffer, EDGES),
        shift(buffer, 2 * EDGES),
        shift(buffer, 3 * EDGES),
        shift(buffer, 4 * EDGES),
        shift(buffer, 5 * EDGES),
        shift(buffer, 9 * EDGES),
    )


@inline
def chunk_slopes(a, b, chunk, h, sides, stats, swap):
    """Fill ``b.weights``, ``b.slopes`` and, where ends bring terms, ``b.terms`` by these.

    ``stats`` are those of the row, or (``swap``) of neighbours.
    """
    side, dot_side, edge_side, edge_dot_side = sides
    compute_products(a, b, chunk, h, side, dot_side, edge_side, edge_dot_side)
    add_edge_scalars(b.dots, chunk, shift(a.grad_attention, h), a.heads)
    keep = keep_factors(DROPOUT, a, chunk, h, b.keep)
    multiply(b.dots, chunk.n, keep)
    subtract_stats(b.logits, b.dots, chunk, stats, a.heads, swap)
    softmax_slopes(b.logits, b.dots, chunk.n, b.weights, b.slopes)
    multiply(b.weights, chunk.n, keep)
    multiply(b.terms, chunk.n, optional(b.slopes, term_slope))
    multiply(b.slopes, chunk.n, optional(b.bias, logit_slope))


@inline
def subtract_stats(logits, dots, chunk, stats, heads, swap):
    """logits[k], dots[k] -= (log-sum-exp, delta) of the row itself, or of neighbour k."""
    if swap is None:
        subtract_own_stats(logits, dots, chunk.n, stats)
        return
    for k in range(chunk.n):
        pair = neighbor(chunk.nbrs, k, 2 * heads)
        put(logits, k, get(logits, k) - get(stats, pair))
        put(dots, k, get(dots, k) - get(stats, pair + 1))


@inline
def subtract_own_stats(logits, dots, n, stats):
    like, lse, delta = zeros(REAL, 1), get(stats, 0), get(stats, 1)
    for k in range(0, n, lanes(like)):
        store(logits, k, load(logits, k, like, None) - lse, None)
        store(dots, k, load(dots, k, like, None) - delta, None)


@inline
def softmax_slopes(logits, dots, n, weights, slopes):
    """weights = p = exp(logits); slopes = p * dots, the loss by each logit."""
    like = zeros(REAL, 1)
    for k in range(0, n, lanes(like)):
        p = exponential(load(logits, k, like, None))
        store(weights, k, p, None)
        store(slopes, k, p * load(dots, k, like, None), None)


@inline
def add_total(target, at, values, n):
    """target[at] += the sum of n values."""
    if target is None:
        return
    like = zeros(REAL, 1)
    sums = like
    for k in range(0, n, lanes(like)):
        sums += active(load(values, k, like, None), first_lanes(n - k, like))
    put(target, at, get(target, at) + total(sums))
