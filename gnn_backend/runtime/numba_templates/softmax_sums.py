"""The sums over features that logits are made of, of every edge, where they are asked for."""

# mypy: disable-error-code=no-untyped-def

from gnn_backend.runtime.cpu_memory import shift
from gnn_backend.runtime.numba_templates.common import arguments, block_bounds, row_edges
from gnn_backend.runtime.numba_templates.softmax_edges import EDGES, chunk_at, put_edge_scalars
from gnn_backend.runtime.numba_templates.softmax_logits import add_logit_sums, row_sides


def feature_sums(block, address):
    """Sums [E, heads] in the caller's order, of the edges in a block; by_dst CSR."""
    a = arguments(address)
    buffer = shift(a.buffers, block * a.buffer_stride)
    bounds = block_bounds(block, a)
    for row in range(bounds[0], min(bounds[2] + 1, a.rows)):
        begin, end, _ = row_edges(row, bounds, a)
        for e in range(begin, end, EDGES):
            chunk = chunk_at(a, e, end)
            for h in range(a.heads):
                side, _ = row_sides(a, row, h)
                add_logit_sums(a, buffer, chunk, side)
                put_edge_scalars(shift(a.attention, h), chunk, a.heads, buffer)
