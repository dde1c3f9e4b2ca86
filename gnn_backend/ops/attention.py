r"""Fused attention operators: softmax-weighted sums that never store an edge-wise score.

All of them compute, for every destination :math:`i` and head :math:`h`, over its in-edges
:math:`e = (j \to i)`,

.. math::
    \alpha_{e,h} = \mathrm{softmax}_i(\ell)_{e,h}, \qquad
    w_{e,h} = \alpha_{e,h} \, m_{e,h} / (1 - p), \qquad
    y_{i,h} = \sum_e w_{e,h} \, v_{j,h}

with a dropout mask :math:`m`, 0 with probability :math:`p` (:math:`w = \alpha` without dropout),
and differ in the logit :math:`\ell`. Tensors of edges are in the caller's edge order.

They raise ``InvalidArgument`` where shapes, dtypes or devices do not fit each other or the graph,
and ``Unsupported``, whose ``reason`` says which, where there is no kernel for a dtype, device or
width. Results are in the dtype of the inputs (float32, bfloat16, float16; float64 on the CPU
target), accumulated in float32. Destinations without in-edges are 0. Equal inputs give equal
bits, forward and backward; ``torch.manual_seed`` decides dropout masks, which are computed anew
in backward. Second derivatives are right (through plain torch operations).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gnn_backend.errors import Unsupported, invalid
from gnn_backend.graph import Graph
from gnn_backend.ops.attention_checks import (
    check_edge_width,
    check_graph,
    check_number,
    check_operands,
    check_probability,
    edge_features_shape,
)
from gnn_backend.ops.dropout import draw_mask
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.ops.softmax_attention import (
    kernel_ready,
    refuse_batch,
    softmax_attention,
)
from gnn_backend.runtime.launch import engine_for


def gatv2_attention(
    graph: Graph,
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    *,
    negative_slope: float = 0.2,
    edge: Tensor | None = None,
    dropout_p: float = 0.0,
    return_attention: bool = False,
) -> Any:
    r"""GATv2 attention (Brody, Alon and Yahav, "How attentive are graph attention networks?").

    .. math::
        \ell_{e,h} = \sum_d a_{h,d} \,
        \mathrm{LeakyReLU}(x^{src}_{j,h,d} + x^{dst}_{i,h,d} + z_{e,h,d}),
        \qquad v = x^{src}

    Parameters
    ----------
    graph : Graph
        Edges source j -> destination i.
    x_src : Tensor [num_src, H, D]
        Projected source features, which are the values as well.
    x_dst : Tensor [num_dst, H, D]
        Projected destination features.
    att : Tensor [H, D]
        Attention vector.
    negative_slope : float
        Slope of the leaky-relu below 0 (its derivative at 0 is the slope, as in torch).
    edge : Tensor [E, H, D], optional
        Projected edge features z.
    dropout_p : float
        Probability that a weight is dropped.
    return_attention : bool
        Return the weights w as well.

    Returns
    -------
    out : Tensor [num_dst, H, D]
    attention : Tensor [E, H]
        If asked for; then the result is a tuple.

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices do not fit each other or the graph.
    Unsupported
        No kernel for this dtype, device or head dimension; ``reason`` says which.
    """
    operands = {"x_src": x_src, "x_dst": x_dst, "att": att, **_given(edge=edge)}
    src, dst, edges = _sizes(graph)
    shapes = {
        "x_src": (*src, "D"),
        "x_dst": (*dst, "D"),
        "att": ("H", "D"),
        "edge": (*edges, "D"),
    }
    check_operands(graph, operands, shapes, "x_src")
    check_number("negative_slope", negative_slope)
    scalars = {"negative_slope": float(negative_slope)}
    return _attend("gatv2", graph, operands, scalars, dropout_p, False, return_attention)


def gat_attention(
    graph: Graph,
    x_src: Tensor,
    el: Tensor,
    er: Tensor,
    *,
    negative_slope: float = 0.2,
    edge_logit: Tensor | None = None,
    edge_features: Tensor | None = None,
    dropout_p: float = 0.0,
    return_attention: bool = False,
) -> Any:
    r"""GAT attention (Velickovic et al., "Graph attention networks").

    .. math::
        \ell_{e,h} = \mathrm{LeakyReLU}(el_{j,h} + er_{i,h} + b_{e,h}), \qquad v = x^{src}

    A projected edge feature in the logit is a logit of its own,
    :math:`a \cdot W f_e = (W^\top a) \cdot f_e`, and one in the value is summed before it is
    projected, :math:`\sum_e w_e W f_e = W \sum_e w_e f_e`.

    Parameters
    ----------
    graph : Graph
        Edges source j -> destination i.
    x_src : Tensor [num_src, H, D]
        Values.
    el : Tensor [num_src, H]
    er : Tensor [num_dst, H]
        Shares of the two ends in the logit.
    negative_slope : float
        Slope of the leaky-relu below 0 (its derivative at 0 is the slope, as in torch).
    edge_logit : Tensor [E, H], optional
        Share b of the edge.
    edge_features : Tensor [E, F] or [E, H, F], optional
        Features f whose weighted sum is returned too; F from 1 to 1024.
    dropout_p : float
        Probability that a weight is dropped.
    return_attention : bool
        Return the weights w as well.

    Returns
    -------
    out : Tensor [num_dst, H, D]
    out_edge : Tensor [num_dst, H, F]
        :math:`\sum_e w_{e,h} f_e`, with ``edge_features``; then the result is a tuple.
    attention : Tensor [E, H]
        If asked for; then the result is a tuple.

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices do not fit each other or the graph.
    Unsupported
        No kernel for this dtype, device or width; ``reason`` says which.
    """
    further = _given(edge_logit=edge_logit, edge_features=edge_features)
    operands = {"x_src": x_src, "el": el, "er": er, **further}
    src, dst, edges = _sizes(graph)
    shapes = {
        "x_src": (*src, "D"),
        "el": src,
        "er": dst,
        "edge_logit": edges,
        "edge_features": edge_features_shape(graph, edge_features),
    }
    check_operands(graph, operands, shapes, "x_src")
    check_number("negative_slope", negative_slope)
    if edge_features is not None:
        check_edge_width(edge_features)
    scalars = {"negative_slope": float(negative_slope)}
    aggregate = edge_features is not None
    return _attend("gat", graph, operands, scalars, dropout_p, aggregate, return_attention)


def supergat_attention(
    graph: Graph,
    x_src: Tensor,
    el: Tensor,
    x_dst: Tensor,
    er: Tensor,
    *,
    negative_slope: float = 0.2,
    scale: float = 0.0,
    dropout_p: float = 0.0,
    return_attention: bool = False,
) -> Any:
    r"""SuperGAT attention (Kim and Oh, "How to find your friendly neighborhood").

    .. math::
        \ell_{e,h} = \mathrm{LeakyReLU}(s \, p + (el_{j,h} + er_{i,h}) \, \sigma(p)), \qquad
        p = \langle x^{src}_{j,h}, x^{dst}_{i,h} \rangle, \qquad v = x^{src}

    Their "MX" is s = 0; "SD" is :math:`s = 1 / \sqrt{D}` with scores of 0.

    Parameters
    ----------
    graph : Graph
        Edges source j -> destination i.
    x_src : Tensor [num_src, H, D]
        Source features, which are the values as well.
    el : Tensor [num_src, H]
    x_dst : Tensor [num_dst, H, D]
    er : Tensor [num_dst, H]
        Shares of the two ends in the logit.
    negative_slope : float
        Slope of the leaky-relu below 0 (its derivative at 0 is the slope, as in torch).
    scale : float
        s.
    dropout_p : float
        Probability that a weight is dropped.
    return_attention : bool
        Return the weights w as well.

    Returns
    -------
    out : Tensor [num_dst, H, D]
    attention : Tensor [E, H]
        If asked for; then the result is a tuple.

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices do not fit each other or the graph.
    Unsupported
        No kernel for this dtype, device or head dimension; ``reason`` says which.
    """
    operands = {"x_src": x_src, "el": el, "x_dst": x_dst, "er": er}
    src, dst, _ = _sizes(graph)
    shapes = {"x_src": (*src, "D"), "el": src, "x_dst": (*dst, "D"), "er": dst}
    check_operands(graph, operands, shapes, "x_src")
    check_number("negative_slope", negative_slope)
    check_number("scale", scale)
    scalars = {"negative_slope": float(negative_slope), "scale": float(scale)}
    return _attend("supergat", graph, operands, scalars, dropout_p, False, return_attention)


def dot_attention(
    graph: Graph,
    q_dst: Tensor,
    k_src: Tensor,
    v_src: Tensor,
    *,
    scale: float | None = None,
    edge_bias: Tensor | None = None,
    edge_features: Tensor | None = None,
    edge_query: Tensor | None = None,
    edge_aggregate: bool = False,
    dropout_p: float = 0.0,
    return_attention: bool = False,
) -> Any:
    r"""Dot-product attention (Vaswani et al., "Attention is all you need") over in-edges.

    .. math::
        \ell_{e,h} = s \, (\langle q_{i,h}, k_{j,h} \rangle + \langle u_{i,h}, f_e \rangle)
        + b_{e,h}

    A key and a value with projected edge features, :math:`k_j + W f_e` and :math:`v_j + W f_e`,
    need no [E, H, D]: give the features as they are, :math:`u_{i,h} = W_h^\top q_{i,h}` as
    ``edge_query``, and add :math:`W_h` times the second result to the first. Features that are
    projected already are ``edge_features`` [E, H, D] with ``edge_query=q_dst``.

    Parameters
    ----------
    graph : Graph
        Edges source j -> destination i.
    q_dst : Tensor [num_dst, H, D]
    k_src, v_src : Tensor [num_src, H, D]
    scale : float, optional
        s, by default 1 / sqrt(D).
    edge_bias : Tensor [E, H], optional
        b, for a mask -inf.
    edge_features : Tensor [E, F] or [E, H, F], optional
        f; F from 1 to 1024.
    edge_query : Tensor [num_dst, H, F], optional
        u.
    edge_aggregate : bool
        Return the weighted sum of the edge features as well.
    dropout_p : float
        Probability that a weight is dropped.
    return_attention : bool
        Return the weights w as well.

    Returns
    -------
    out : Tensor [num_dst, H, D]
    out_edge : Tensor [num_dst, H, F]
        :math:`\sum_e w_{e,h} f_e`, with ``edge_aggregate``; then the result is a tuple.
    attention : Tensor [E, H]
        If asked for; then the result is a tuple.

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices do not fit each other or the graph.
    Unsupported
        No kernel for this dtype, device or width; ``reason`` says which.
    """
    further = _given(edge_bias=edge_bias, edge_features=edge_features, edge_query=edge_query)
    operands = {"q_dst": q_dst, "k_src": k_src, "v_src": v_src, **further}
    src, dst, edges = _sizes(graph)
    shapes = {
        "q_dst": (*dst, "D"),
        "k_src": (*src, "D"),
        "v_src": (*src, "D"),
        "edge_bias": edges,
        "edge_features": edge_features_shape(graph, edge_features),
        "edge_query": (*dst, "F"),
    }
    check_operands(graph, operands, shapes, "q_dst")
    if edge_features is None:
        if edge_query is not None or edge_aggregate:
            raise invalid("edge_features", "not given", None, "[E, F] or [E, H, F]")
    else:
        if edge_query is None and not edge_aggregate:
            raise invalid(
                "edge_features", "of no effect", tuple(edge_features.shape),
                "edge_query or edge_aggregate beside it",
            )  # fmt: skip
        check_edge_width(edge_features)
    if scale is None:
        scale = q_dst.shape[2] ** -0.5 if q_dst.shape[2] else 1.0
    check_number("scale", scale)
    scalars = {"scale": float(scale)}
    return _attend("dot", graph, operands, scalars, dropout_p, edge_aggregate, return_attention)


def _given(**operands: Tensor | None) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in operands.items() if tensor is not None}


def _sizes(graph: Graph) -> tuple[tuple[Any, str], tuple[Any, str], tuple[Any, str]]:
    """Shapes [rows, H] of sources, destinations and edges."""
    check_graph(graph)
    return (graph.num_src, "H"), (graph.num_dst, "H"), (graph.num_edges, "H")


def _attend(
    name: str,
    graph: Graph,
    operands: dict[str, Tensor],
    scalars: dict[str, float],
    dropout_p: float,
    aggregate: bool,
    weights: bool,
) -> Any:
    check_probability("dropout_p", dropout_p)
    functor = FUNCTORS[name]
    value = operands[functor.value]
    engine_for(value.device, value.dtype)  # refuses before a random number is drawn
    dropout = draw_mask(dropout_p, graph, value.shape[1])
    results = softmax_attention(
        functor, graph, operands, scalars, dropout, aggregate=aggregate, weights=weights
    )
    asked = [result for result in results if result is not None]
    return tuple(asked) if aggregate or weights else asked[0]


__all__ = [
    "Unsupported",
    "dot_attention",
    "gat_attention",
    "gatv2_attention",
    "kernel_ready",
    "refuse_batch",
    "softmax_attention",
    "supergat_attention",
]
