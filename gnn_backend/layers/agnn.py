"""AGNN: attention by the cosine of the ends' features (Thekumparampil et al., 2018)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from gnn_backend.graph import Graph
from gnn_backend.layers.combination import combine
from gnn_backend.ops.attention import dot_attention
from gnn_backend.ops.attention_forms import FORMS
from gnn_backend.ops.projected_attention import projected_attention


def agnn(graph: Graph, x_src: Tensor, x_dst: Tensor | None, beta: Tensor) -> Tensor:
    """Sum of source features weighted by a softmax of scaled cosines.

    For every destination ``i``, over the in-edges ``j -> i``::

        out[i] = sum_j softmax_j(beta * cos(x_dst[i], x_src[j])) * x_src[j]

    Parameters
    ----------
    graph : Graph
    x_src : Tensor [num_src, D]
    x_dst : Tensor [num_dst, D] or None
        By default the first ``num_dst`` rows of ``x_src``.
    beta : Tensor [1]

    Returns
    -------
    Tensor [num_dst, D]

    Raises
    ------
    InvalidArgument
        Shapes or devices that do not fit the graph.
    Unsupported
        No fused kernel takes these operands; the exception carries the reason code.
    """
    plain = x_src.dtype is beta.dtype and not torch.is_autocast_enabled(x_src.device.type)
    if x_dst is None and plain and x_src.dtype is not torch.float16:  # inverse lengths overflow
        return projected_attention(
            FORMS["agnn"], graph, x_src, None, (beta,), {}, num_heads=1, heads="concat"
        )
    key = normalize(x_src, p=2.0, dim=-1)
    if x_dst is not None:
        query = normalize(x_dst, p=2.0, dim=-1)
    else:
        query = key if graph.num_dst == key.shape[0] else key[: graph.num_dst]
    query = (beta * query).to(x_src.dtype)
    query, key, value = (t.unsqueeze(1) for t in (query, key, x_src))
    return combine(dot_attention(graph, query, key, value, scale=1.0), heads="concat")
