"""What the backward of a softmax-weighted sum needs of each row and head."""

# mypy: disable-error-code=no-untyped-def

from gnn_backend.runtime.cpu_memory import get, load, put, shift
from gnn_backend.runtime.cpu_vector import total
from gnn_backend.runtime.numba_templates.common import arguments, for_tiles, inline


@inline
def row_dot_tile(at, like, mask, left, right, result):
    product = load(left, at, like, mask) * load(right, at, like, mask)
    put(result, 0, get(result, 0) + total(product))


def stats(block, address):
    """stats[row, head] = (lse, <grad_out, out>), for a share of the rows."""
    a = arguments(address)
    count = a.rows * a.heads
    for r in range(count * block // a.blocks, count * (block + 1) // a.blocks):
        put(a.stats, 2 * r, get(a.lse, r))
        product = shift(a.stats, 2 * r + 1)
        put(product, 0, 0.0)
        out, grad_out = shift(a.out, r * a.width), shift(a.grad_out, r * a.width)
        for_tiles(row_dot_tile, a.width, (out, grad_out, product))
        # An infinite cotangent makes every term of the row's sum infinite, of either sign; the
        # gradients of its logits are then NaN, as inf - inf is.
        dot = get(product, 0)
        put(product, 0, dot + (dot - dot))
