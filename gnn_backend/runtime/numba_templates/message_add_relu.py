"""The message of an edge is relu of its source's row plus a number, or a row, of the edge."""

# mypy: disable-error-code=no-untyped-def

from gnn_backend.runtime.cpu_vector import where
from gnn_backend.runtime.numba_templates.common import inline


@inline
def message(x, edge):
    """What travels along the edge; NaN stays NaN."""
    z = x + edge
    return where(z < 0.0, 0.0, z)


@inline
def x_slope(slope, x, edge):
    """Gradient towards the source, from that towards the message."""
    z = x + edge
    return where(z < 0.0, 0.0, where(z == 0.0, 0.0, slope))  # passes at NaN, as torch's


edge_slope = x_slope
