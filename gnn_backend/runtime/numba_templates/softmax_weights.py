"""The weights themselves, of every edge and head, where they are asked for."""

# mypy: disable-error-code=no-untyped-def

from gnn_backend.runtime.cpu_memory import get, shift
from gnn_backend.runtime.numba_templates.common import (
    DROPOUT,
    arguments,
    block_bounds,
    inline,
    row_edges,
    row_of,
)
from gnn_backend.runtime.numba_templates.softmax_edges import (
    EDGES,
    chunk_at,
    keep_factors,
    multiply,
    put_edge_scalars,
)
from gnn_backend.runtime.numba_templates.softmax_logits import (
    compute_logits,
    exponentials,
    row_sides,
)


@inline
def weights_of_row(a, row, begin, end, logits):
    bias, keep_buffer = shift(logits, EDGES), shift(logits, 2 * EDGES)
    for e in range(begin, end, EDGES):
        chunk = chunk_at(a, e, end)
        for h in range(a.heads):
            side, edge_side = row_sides(a, row, h)
            compute_logits(a, logits, bias, chunk, h, side, edge_side)
            exponentials(logits, chunk.n, get(a.lse, row * a.heads + h))
            multiply(logits, chunk.n, keep_factors(DROPOUT, a, chunk, h, keep_buffer))
            put_edge_scalars(shift(a.attention, h), chunk, a.heads, logits)


def weights(block, address):
    """Attention [E, heads] in the caller's order, of the edges in a block; by_dst CSR."""
    a = arguments(address)
    bounds = block_bounds(block, a)
    for place in range(bounds[0], min(bounds[2] + 1, a.rows)):
        begin, end, _ = row_edges(place, bounds, a)
        row = row_of(a.row_ids, place)
        weights_of_row(a, row, begin, end, shift(a.buffers, block * a.buffer_stride))
