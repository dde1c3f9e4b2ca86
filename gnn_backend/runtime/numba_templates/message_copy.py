"""The message of an edge is its source's row."""

# mypy: disable-error-code=no-untyped-def

from gnn_backend.runtime.numba_templates.common import inline


@inline
def message(x, edge):
    """What travels along the edge."""
    return x


@inline
def x_slope(slope, x, edge):
    """Gradient towards the source, from that towards the message."""
    return slope


@inline
def edge_slope(slope, x, edge):
    """Gradient towards what the edge brings, from that towards the message."""
    return slope
