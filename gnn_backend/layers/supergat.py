"""SuperGAT: graph attention that also predicts edges (Kim and Oh, 2021)."""

from __future__ import annotations

from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops.attention_forms import FORMS
from gnn_backend.ops.edge_dot import node_dot
from gnn_backend.ops.heads import Heads
from gnn_backend.ops.projected_attention import Projection, projected_attention


def supergat(
    graph: Graph,
    features: Tensor,
    projection: Projection | None,
    att_src: Tensor | None,
    att_dst: Tensor | None,
    *,
    num_heads: int,
    negative_slope: float = 0.2,
    dropout_p: float = 0.0,
    heads: Heads = "keep",
    bias: Tensor | None = None,
) -> Tensor:
    """Apply SuperGAT to node features, as one autograd node that keeps nothing edge-wise.

    For every destination ``i`` and head ``h``, over the in-edges ``j -> i``, with projected
    features ``x`` and ``p = <x[i, h], x[j, h]>``::

        score = (<att_src[h], x[j, h]> + <att_dst[h], x[i, h]>) * sigmoid(p)      "MX"
        score = p / sqrt(D)                                    "SD", without att_src, att_dst
        out[i, h] = sum_j softmax_j(leaky_relu(score)) * x[j, h]

    Parameters
    ----------
    graph : Graph
        As many sources as destinations.
    features : Tensor [N, F]
    projection : Projection or None
        None: the features are projected already, [N, H * D].
    att_src, att_dst : Tensor [H, D] or [1, H, D] or None
    num_heads : int
    negative_slope : float
    dropout_p : float
        Probability that a weight is dropped.
    heads : {"keep", "concat", "mean"}
        Shape of the result: [N, H, D], [N, H * D] or [N, D].
    bias : Tensor [columns of the result], optional

    Returns
    -------
    Tensor
        In the dtype that all tensors must have in common.

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices that do not fit each other or the graph.
    Unsupported
        No fused kernel takes these operands; the exception carries the reason code.
    """
    width = features.shape[1] if projection is None else projection.weight.shape[0]
    params: tuple[Tensor, ...] = ()
    form, scale = FORMS["supergat scaled"], (width // num_heads) ** -0.5
    if att_src is not None and att_dst is not None:
        form, params, scale = FORMS["supergat"], (att_src, att_dst), 0.0
    return projected_attention(
        form, graph, features, projection, params,
        {"negative_slope": negative_slope, "scale": scale},
        num_heads=num_heads, heads=heads, bias=bias, dropout_p=dropout_p,
    )  # fmt: skip


def pair_logits(graphs: tuple[Graph, ...], x: Tensor, *, scaled: bool) -> Tensor:
    """What SuperGAT's loss takes for the logit that a pair of nodes is an edge.

    Parameters
    ----------
    graphs : tuple of Graph
        The pairs, as their edges.
    x : Tensor [N, H, D]
        Projected features.
    scaled : bool
        Divide by the root of D, as "SD" does.

    Returns
    -------
    Tensor [E, H]
        Dot products of both ends, graph after graph, in the order that the pairs were given in.

    Raises
    ------
    InvalidArgument
        Shapes or devices that do not fit the graphs.
    """
    logits = node_dot(graphs, x)
    return logits / x.shape[2] ** 0.5 if scaled else logits
