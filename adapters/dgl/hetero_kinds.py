"""Which of DGL's layers run together inside ``HeteroGraphConv``, and how each kind of them does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dgl.nn.pytorch as dglnn
from torch import Tensor, nn

from gnn_backend.adapters.dgl.attention import LINEAR, dropout_of, modules_reason
from gnn_backend.adapters.relations import ELEMENTWISE, Kind, parameters_reason
from gnn_backend.layers.hetero.aggregating import Parameters, hetero_aggregate
from gnn_backend.layers.hetero.attention import GATV2_PARTS, combined, hetero_gat, hetero_gatv2
from gnn_backend.layers.hetero.products import biases_of, stacked, weights_of
from gnn_backend.layers.hetero.union import Rows, Union
from gnn_backend.layers.projection import projection_of, watched
from gnn_backend.ops.projected_attention import Projection
from gnn_backend.runtime.selection import MAX_HEAD_DIM

Found = Kind | str
_NORMS = {"both": "both", "left": "left", "right": "mean", "none": "sum"}


def kind_of(conv: Any) -> Found:
    """The kind of a relation's layer, or the reason code for which it has none."""
    make = _KINDS.get(type(conv))
    if make is None:
        return "relation-modules"
    if watched(conv) or any(watched(child) for child in conv.children()):
        return "hooks"
    if not getattr(conv, "_allow_zero_in_degree", True):
        return "zero-in-degree"
    drop = getattr(conv, "feat_drop", None)
    if drop is not None and (type(drop) is not nn.Dropout or (drop.training and drop.p > 0)):
        return "feature-dropout"
    activation = conv._activation if type(conv) is dglnn.GraphConv else conv.activation
    if activation is not None and activation not in ELEMENTWISE:
        return "parametrized"
    reason = parameters_reason(conv.parameters())
    return reason or make(conv, activation)


def _shape(found: Tensor | None) -> tuple[int, ...] | None:
    return None if found is None else tuple(found.shape)


def _linear(module: Any, width: int) -> Projection | None:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        return None
    return projection_of(module, LINEAR, weight.dtype, width)


# ---------------------------------------------------------------------- GraphConv


def _graph_conv_kind(conv: Any, activation: Any) -> Found:
    weight, reduce = conv.weight, _NORMS.get(conv._norm)
    if weight is None or reduce is None:
        return "parametrized"
    config = ("GraphConv", reduce, tuple(weight.shape), weight.dtype, _shape(conv.bias))
    return Kind(
        _graph_conv, config, (weight.shape[0], None), "", activation, sums=activation is None
    )


def _graph_conv(
    convs: Sequence[Any], union: Union, rows: Rows, x_src: Tensor, x_dst: Tensor
) -> Tensor:
    reduce = _NORMS[convs[0]._norm]
    bias = None if convs[0].bias is None else stacked([c.bias for c in convs])
    parameters = Parameters(stacked([c.weight for c in convs]), bias=bias)
    return hetero_aggregate(union, rows, x_src, x_dst, parameters, reduce, first_tie=True)


# ---------------------------------------------------------------------- SAGEConv


def _sage_kind(conv: Any, activation: Any) -> Found:
    kind, width = conv._aggre_type, conv._out_feats
    if kind not in ("mean", "gcn", "pool"):
        return "aggregation"
    if conv.norm is not None:
        return "parametrized"
    linears = [_linear(conv.fc_neigh, width)]
    if kind == "pool":
        linears.append(_linear(conv.fc_pool, conv._in_src_feats))
    if kind != "gcn":
        linears.append(_linear(conv.fc_self, width))
    if any(linear is None for linear in linears):
        return "parametrized"
    shapes = tuple(tuple(map(_shape, linear)) for linear in linears if linear is not None)
    bias = conv.bias if kind == "gcn" else None
    widths = (conv._in_src_feats, conv._in_src_feats if kind == "gcn" else conv._in_dst_feats)
    config = ("SAGEConv", kind, shapes, conv.fc_neigh.weight.dtype, _shape(bias))
    return Kind(
        _sage, config, widths, "own" if kind == "gcn" else "", activation,
        activation is None,
    )  # fmt: skip


def _sage(convs: Sequence[Any], union: Union, rows: Rows, x_src: Tensor, x_dst: Tensor) -> Tensor:
    kind = convs[0]._aggre_type
    own = bias = before = before_bias = None
    if kind == "gcn":
        bias = None if convs[0].bias is None else stacked([c.bias for c in convs])
    else:
        linears = [c.fc_self for c in convs]
        own, bias = weights_of(linears), biases_of(linears)
    if kind == "pool":
        linears = [c.fc_pool for c in convs]
        before, before_bias = weights_of(linears), biases_of(linears)
    neighbours = weights_of([c.fc_neigh for c in convs])
    parameters = Parameters(neighbours, own, bias, before, before_bias)
    reduce = "max" if kind == "pool" else "mean"
    return hetero_aggregate(union, rows, x_src, x_dst, parameters, reduce, first_tie=True)


# ---------------------------------------------------------------------- GATConv, GATv2Conv


def _ends(conv: Any) -> tuple[Any, Any]:
    return (conv.fc_src, conv.fc_dst) if hasattr(conv, "fc_src") else (conv.fc, conv.fc)


def _attention_kind(conv: Any, activation: Any, attentions: Sequence[Tensor]) -> Found:
    shape, gatv2 = (1, conv._num_heads, conv._out_feats), type(conv) is dglnn.GATv2Conv
    reason = modules_reason(conv)
    if reason is not None:
        return reason
    if any(att.shape != shape for att in attentions):
        return "parametrized"
    if gatv2 and GATV2_PARTS * conv._out_feats > MAX_HEAD_DIM:
        return "head-dim"
    width = conv._num_heads * conv._out_feats
    linears = [_linear(module, width) for module in _ends(conv)]
    plain = type(conv.res_fc) in (dglnn.utils.Identity, nn.Identity)
    if conv.res_fc is not None and not plain:
        linears.append(_linear(conv.res_fc, width))
    if any(linear is None for linear in linears):
        return "parametrized"
    shapes = tuple(tuple(map(_shape, linear)) for linear in linears if linear is not None)
    bias = None if gatv2 else _shape(conv.bias)
    options = (conv.leaky_relu.negative_slope, dropout_of(conv), plain)
    config = (type(conv).__name__, shape, shapes, attentions[0].dtype, bias, options)
    widths = conv._in_src_feats, conv._in_dst_feats
    run = _gatv2 if gatv2 else _gat
    drops = dropout_of(conv) > 0
    return Kind(run, config, widths, "", activation, activation is None, drops)


def _gat_kind(conv: Any, activation: Any) -> Found:
    return _attention_kind(conv, activation, (conv.attn_l, conv.attn_r))


def _gatv2_kind(conv: Any, activation: Any) -> Found:
    return _attention_kind(conv, activation, (conv.attn,))


def _gat(convs: Sequence[Any], union: Union, rows: Rows, x_src: Tensor, x_dst: Tensor) -> Tensor:
    first = convs[0]
    ends = [_ends(conv) for conv in convs]
    src = weights_of([end[0] for end in ends])
    dst = src if ends[0][0] is ends[0][1] else weights_of([end[1] for end in ends])
    names = ("attn_l", "attn_r")
    attentions = (stacked([getattr(c, n) for c in convs]).squeeze(1) for n in names)
    out = hetero_gat(
        union, x_src, x_dst, src, dst, *attentions,
        negative_slope=first.leaky_relu.negative_slope, dropout_p=dropout_of(first),
    )  # fmt: skip
    bias = None if first.bias is None else stacked([c.bias for c in convs])
    return _with_residual(convs, union, rows, out, x_dst, bias)


def _gatv2(convs: Sequence[Any], union: Union, rows: Rows, x_src: Tensor, x_dst: Tensor) -> Tensor:
    first = convs[0]
    src, dst = [c.fc_src for c in convs], [c.fc_dst for c in convs]
    shared = src[0] is dst[0]
    to_src, src_bias = weights_of(src), biases_of(src)
    to_dst, dst_bias = (to_src, src_bias) if shared else (weights_of(dst), biases_of(dst))
    out = hetero_gatv2(
        union, x_src, x_dst, to_src, to_dst, stacked([c.attn for c in convs]).squeeze(1),
        src_bias=src_bias, dst_bias=dst_bias,
        negative_slope=first.leaky_relu.negative_slope, dropout_p=dropout_of(first),
    )  # fmt: skip
    return _with_residual(convs, union, rows, out, x_dst, None)


def _with_residual(
    convs: Sequence[Any], union: Union, rows: Rows, out: Tensor, x_dst: Tensor, bias: Tensor | None
) -> Tensor:
    """Heads side by side, residual and bias; [rows, H, D]."""
    residual: Tensor | bool | None = None
    linear = convs[0].res_fc
    if linear is not None:
        residual = True
        if isinstance(linear, nn.Linear):
            linears = [c.res_fc for c in convs]
            residual, added = weights_of(linears), biases_of(linears)
            bias = added if bias is None else bias
    found = combined(union, rows, out, x_dst, concat=True, residual=residual, bias=bias)
    return found.view(-1, convs[0]._num_heads, convs[0]._out_feats)


_KINDS: dict[Any, Callable[[Any, Any], Found]] = {
    dglnn.GraphConv: _graph_conv_kind,
    dglnn.SAGEConv: _sage_kind,
    dglnn.GATConv: _gat_kind,
    dglnn.GATv2Conv: _gatv2_kind,
}
