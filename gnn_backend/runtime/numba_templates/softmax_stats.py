"""What the backward of a softmax-weighted sum needs of each row and head."""

# mypy: disable-error-code=no-untyped-def

from numba import prange

from gnn_backend.runtime.cpu_vector import get, load, pointer, put, shift, total
from gnn_backend.runtime.numba_templates.common import entry, for_tiles, inline


@inline
def row_dot_tile(at, like, mask, left, right, result):
    product = load(left, at, like, mask) * load(right, at, like, mask)
    put(result, 0, get(result, 0) + total(product))


@entry
def delta(blocks, out, grad_out, lse, stats, size):
    """stats[row, head] = (lse, <grad_out, out>): all that softmax's backward needs of a row."""
    rows, heads, _, width = size
    o, g, s, result = pointer(out), pointer(grad_out), pointer(lse), pointer(stats)
    count = rows * heads
    for block in prange(blocks):
        for r in range(count * block // blocks, count * (block + 1) // blocks):
            put(result, 2 * r, get(s, r))
            put(result, 2 * r + 1, 0.0)
            for_tiles(
                row_dot_tile,
                width,
                o,
                (shift(o, r * width), shift(g, r * width), shift(result, 2 * r + 1)),
            )
