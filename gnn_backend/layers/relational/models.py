"""The three models by name, and what a layer of one takes."""

from __future__ import annotations

from collections.abc import Hashable

from gnn_backend.errors import invalid
from gnn_backend.graph.relations import Relations
from gnn_backend.layers.relational.hgt import hgt
from gnn_backend.layers.relational.rgat import rgat
from gnn_backend.layers.relational.rgcn import rgcn

MODELS = {"rgcn": rgcn, "rgat": rgat, "hgt": hgt}
Shapes = dict[str, tuple[int, ...]]


def layer_arguments(
    model: str, relations: Relations, in_dim: int, out_dim: int, heads: int = 1
) -> tuple[Shapes, dict[str, Hashable]]:
    """Shapes of the tensors of a layer, and its constants.

    Parameters
    ----------
    model : {"rgcn", "rgat", "hgt"}
    relations : Relations
        Of a graph whose destinations are its sources.
    in_dim, out_dim : int
        Width of the features, and of the result with all heads.
    heads : int
        RGCN has none.

    Raises
    ------
    InvalidArgument
        ``out_dim`` is no multiple of ``heads``, or RGCN is asked for several.
    """
    if model == "rgcn" and heads != 1:
        raise invalid("heads", "RGCN has no heads", heads, 1)
    if heads < 1 or out_dim % heads:
        raise invalid("heads", "does not divide the width of the result", heads,
                      f"a divisor of {out_dim}")  # fmt: skip
    types, kinds, dim = relations.num_edge_types, relations.num_node_types, out_dim // heads
    features = {"x": (relations.graph.num_src, in_dim)}
    typed = {"weight": (types, in_dim, out_dim)}
    if model == "rgcn":
        return {**features, **typed}, {}
    constants: dict[str, Hashable] = {"num_heads": heads}
    if model == "rgat":
        vectors = dict.fromkeys(("att_src", "att_dst"), (types, heads, dim))
        return {**features, **typed, **vectors}, constants
    by_node = dict.fromkeys(("query", "key", "value"), (kinds, in_dim, out_dim))
    by_edge = dict.fromkeys(("att", "message"), (types, heads, dim, dim))
    return {**features, **by_node, **by_edge, "prior": (types, heads)}, constants
