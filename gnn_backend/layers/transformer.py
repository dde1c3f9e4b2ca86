"""Graph transformer: dot-product attention over in-edges, with or without edge features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.layers.combination import combine
from gnn_backend.layers.edge_projection import edge_queries, project_sums
from gnn_backend.ops.attention import dot_attention
from gnn_backend.ops.attention_forms import FORMS
from gnn_backend.ops.heads import Heads
from gnn_backend.ops.projected_attention import Projection, projected_attention


def transformer(
    graph: Graph,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    edge_features: Tensor | None = None,
    edge_weight: Tensor | None = None,
    dropout_p: float = 0.0,
    heads: Heads = "keep",
    residual: Tensor | None = None,
    return_attention: bool = False,
) -> Any:
    """Apply dot-product attention to projected node features.

    For every destination ``i`` and head ``h``, over the in-edges ``e = (j -> i)``, with
    ``z_e = edge_weight[h] @ edge_features[e]``::

        logit_e = scale * <query[i, h], key[j, h] + z_e>
        out[i, h] = sum_e softmax_i(logit)_e * (value[j, h] + z_e)

    Parameters
    ----------
    graph : Graph
    query : Tensor [num_dst, H, D]
    key, value : Tensor [num_src, H, D]
        Projected features, of one floating dtype.
    scale : float, optional
        By default 1 / sqrt(D).
    edge_features, edge_weight : Tensor [E, F] and [H * D, F], optional
        Features of the edges in the caller's order, and their projection, which is applied to
        nodes instead; features [E, H, D] without it are projected already.
    dropout_p : float
        Probability that a weight is dropped.
    heads : {"keep", "concat", "mean"}
        Shape of the result: [num_dst, H, D], [num_dst, H * D] or [num_dst, D].
    residual : Tensor, optional
        Added to the result.
    return_attention : bool
        Return the weights [E, H] after dropout as well, as the second of a tuple.

    Raises
    ------
    InvalidArgument
        Shapes or devices that do not fit the graph.
    Unsupported
        No fused kernel takes these operands; the exception carries the reason code.
    """
    options: dict[str, Any] = {}
    if edge_features is not None:
        edge_query = query if edge_weight is None else edge_queries(query, edge_weight)
        options = {
            "edge_features": edge_features,
            "edge_query": edge_query.to(query.dtype),
            "edge_aggregate": True,
        }
    found = dot_attention(
        graph, query, key, value, scale=scale, dropout_p=dropout_p,
        return_attention=return_attention, **options,
    )  # fmt: skip
    out, *further = found if isinstance(found, tuple) else (found,)
    if edge_features is not None:
        sums = further.pop(0)
        out = out + (sums if edge_weight is None else project_sums(sums, edge_weight))
    out = combine(out, heads=heads, residual=residual)
    return (out, *further) if return_attention else out


def projected_dot(
    graph: Graph,
    h_src: Tensor,
    src: Projection,
    num_heads: int,
    *,
    scale: float,
    h_dst: Tensor | None = None,
    dst: Projection | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """:func:`transformer` whose keys are its values, projected in the same autograd node.

    Parameters
    ----------
    graph : Graph
    h_src : Tensor [num_src, F]
    src : Projection
        Of keys and values: weight [H * D, F] and bias [H * D] or None.
    num_heads : int
    scale : float
    h_dst : Tensor [num_dst, F_dst], optional
        By default the first ``num_dst`` rows of ``h_src``.
    dst : Projection, optional
        Of the queries, by default that of the sources, applied once.
    dropout_p : float

    Returns
    -------
    Tensor [num_dst, H, D]

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices that do not fit each other or the graph.
    Unsupported
        No fused kernel takes these operands; the exception carries the reason code.
    """
    return projected_attention(
        FORMS["dot"], graph, h_src, src, (), {"scale": scale},
        num_heads=num_heads, h_dst=h_dst, dst=dst, dropout_p=dropout_p,
    )  # fmt: skip


def gated_sum(out: Tensor, skip: Tensor, gate: Callable[[Tensor], Tensor]) -> Tensor:
    """A skip connection weighed by a learned gate (UniMP, Shi et al. 2021).

    ``beta * skip + (1 - beta) * out`` with ``beta = sigmoid(gate([out, skip, out - skip]))``.

    Parameters
    ----------
    out, skip : Tensor [N, D]
    gate : callable (Tensor [N, 3 * D]) -> Tensor [N, 1]
    """
    beta = gate(torch.cat([out, skip, out - skip], dim=-1)).sigmoid()
    return beta * skip + (1 - beta) * out
