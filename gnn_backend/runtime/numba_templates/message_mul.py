"""The message of an edge is its source's row times a number, or a row, of the edge."""

# mypy: disable-error-code=no-untyped-def

from gnn_backend.runtime.numba_templates.common import inline


@inline
def message(x, edge):
    """What travels along the edge."""
    return x * edge


@inline
def x_slope(slope, x, edge):
    """Gradient towards the source, from that towards the message."""
    return slope * edge


@inline
def edge_slope(slope, x, edge):
    """Gradient towards what the edge brings, from that towards the message."""
    return slope * x
