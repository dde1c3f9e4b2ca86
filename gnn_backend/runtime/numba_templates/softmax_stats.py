"""What the backward of a softmax-weighted sum needs of each row and head."""

# mypy: disable-error-code=no-untyped-def

import numpy as np

from gnn_backend.runtime.cpu_memory import get, load, put, shift
from gnn_backend.runtime.cpu_vector import total
from gnn_backend.runtime.numba_templates.common import arguments, for_tiles, inline
from gnn_backend.runtime.numba_templates.softmax_edges import edge_number


@inline
def row_dot_tile(at, like, mask, left, right, result):
    product = load(left, at, like, mask) * load(right, at, like, mask)
    put(result, 0, get(result, 0) + total(product))


@inline
def add_row_dot(r, width, left, right, result):
    """result += <left, right> of one row and head."""
    if left is None:
        return
    for_tiles(row_dot_tile, width, (shift(left, r * width), shift(right, r * width), result))


@inline
def add_weight_dot(a, r, attention, gradient, result):
    """result += the sum of weight * gradient over the edges of one row and head."""
    if gradient is None:
        return
    row, h = r // a.heads, r % a.heads
    dot = get(result, 0)
    for e in range(np.int64(get(a.indptr, row)), np.int64(get(a.indptr, row + 1))):
        at = edge_number(shift(a.edge_ids, e), e, 0) * a.heads + h
        dot += get(attention, at) * get(gradient, at)
    put(result, 0, dot)


def stats(block, address):
    """stats[row, head] = (lse, sum of weight * its gradient), for a share of the rows."""
    a = arguments(address)
    count = a.rows * a.heads
    for r in range(count * block // a.blocks, count * (block + 1) // a.blocks):
        put(a.stats, 2 * r, get(a.lse, r))
        product = shift(a.stats, 2 * r + 1)
        put(product, 0, 0.0)
        add_row_dot(r, a.width, a.out, a.grad_out, product)
        add_row_dot(r, a.feature_width, a.out_edge, a.grad_out_edge, product)
        add_weight_dot(a, r, a.attention, a.grad_attention, product)
        # An infinite cotangent makes every term of the row's sum infinite, of either sign; the
        # gradients of its logits are then NaN, as inf - inf is.
        dot = get(product, 0)
        put(product, 0, dot + (dot - dot))
