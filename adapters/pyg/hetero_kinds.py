"""Which of PyG's layers run together inside ``HeteroConv``, and how each kind of them does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.parameter import is_lazy

from gnn_backend.adapters.pyg import conv as gatv2
from gnn_backend.adapters.pyg import gat, gcn, graph_conv, sage
from gnn_backend.adapters.pyg.attention import LINEAR, dropout_of
from gnn_backend.adapters.pyg.reductions import kind_of as reduction_of
from gnn_backend.adapters.relations import Kind, parameters_reason
from gnn_backend.layers.hetero.aggregating import Parameters, hetero_aggregate
from gnn_backend.layers.hetero.attention import GATV2_PARTS, combined, hetero_gat, hetero_gatv2
from gnn_backend.layers.hetero.products import biases_of, children_of, stacked, weights_of
from gnn_backend.layers.hetero.union import Rows, Union
from gnn_backend.layers.projection import projection_of, watched
from gnn_backend.runtime.selection import MAX_HEAD_DIM

Found = Kind | str
REDUCTIONS = ("sum", "mean", "max", "min")


def kind_of(conv: Any) -> Found:
    """The kind of a relation's layer, or the reason code for which it has none."""
    found = _KINDS.get(_stock_name(conv))
    if found is None:
        return "relation-modules"
    static_reason, make = found
    if any(map(is_lazy, conv.parameters())):
        return "lazy"
    if watched(conv) or any(watched(child) for child in conv.children()):
        return "hooks"
    if conv.flow != "source_to_target":
        return "flow"
    return parameters_reason(conv.parameters()) or static_reason(conv) or make(conv)


def is_square(conv: Any) -> bool:
    """Whether a layer takes relations of a type with itself alone."""
    return _stock_name(conv) == "GCNConv"


def _stock_name(conv: Any) -> str:
    """Name of a layer's class if it is PyG's own, else nothing; PyG need not be there."""
    cls = type(conv)
    return cls.__qualname__ if cls.__module__.startswith("torch_geometric.nn.conv.") else ""


def _shapes(*linears: Any) -> tuple[Any, ...] | None:
    """Shapes of linear modules that need not be called, or None."""
    found: list[Any] = []
    for linear in linears:
        if linear is None:
            found.append(None)
            continue
        weight = linear._parameters.get("weight")
        plain = None if weight is None or weight.dim() != 2 else projection_of(
            linear, LINEAR, weight.dtype, weight.shape[0]
        )  # fmt: skip
        if plain is None:
            return None
        found.append((*plain.weight.shape, plain.weight.dtype, plain.bias is None))
    return tuple(found)


def _bias(convs: Sequence[Any]) -> Tensor | None:
    return None if convs[0].bias is None else stacked([conv.bias for conv in convs])


# ---------------------------------------------------------------------- aggregating layers


def _gcn_kind(conv: Any) -> Found:
    shapes = _shapes(conv.lin)
    if shapes is None or conv.lin.bias is not None or conv.improved or conv.cached:
        return "parametrized"
    loops = "replaced" if conv.normalize and conv.add_self_loops else ""
    config = ("GCNConv", shapes, conv.bias is None, bool(conv.normalize))
    return Kind(_gcn, config, (conv.lin.weight.shape[1], None), loops)


def _gcn(convs: Sequence[Any], union: Union, rows: Rows, x_src: Tensor, x_dst: Tensor) -> Tensor:
    reduce = "symmetric" if convs[0].normalize else "sum"
    p = Parameters(weights_of(children_of(convs, "lin")), bias=_bias(convs))
    return hetero_aggregate(union, rows, x_src, x_dst, p, reduce, first_tie=False)


def _graph_conv_kind(conv: Any) -> Found:
    reduce, shapes = reduction_of(conv.aggr_module), _shapes(conv.lin_rel, conv.lin_root)
    if reduce not in REDUCTIONS:
        return "aggregation"
    if shapes is None or conv.lin_root.bias is not None:
        return "parametrized"
    widths = conv.lin_rel.weight.shape[1], conv.lin_root.weight.shape[1]
    return Kind(_graph_conv, ("GraphConv", reduce, shapes), widths)


def _graph_conv(
    convs: Sequence[Any], union: Union, rows: Rows, x_src: Tensor, x_dst: Tensor
) -> Tensor:
    linears = children_of(convs, "lin_rel")
    p = Parameters(
        weights_of(linears), weights_of(children_of(convs, "lin_root")), biases_of(linears)
    )
    reduce = str(reduction_of(convs[0].aggr_module))
    return hetero_aggregate(union, rows, x_src, x_dst, p, reduce, first_tie=False)


def _sage_kind(conv: Any) -> Found:
    reduce = reduction_of(conv.aggr_module)
    if reduce not in REDUCTIONS:
        return "aggregation"
    root = conv.lin_r if conv.root_weight else None
    shapes = _shapes(conv.lin_l, root, conv.lin if conv.project else None)
    if shapes is None or (root is not None and root.bias is not None):
        return "parametrized"
    width = conv.lin_l.weight.shape[1]
    widths = width, None if root is None else root.weight.shape[1]
    last = _normalized if conv.normalize else None
    return Kind(_sage, ("SAGEConv", reduce, shapes), widths, "", last, last is None)


def _normalized(rows: Tensor) -> Tensor:
    return normalize(rows, p=2.0, dim=-1)


def _sage(convs: Sequence[Any], union: Union, rows: Rows, x_src: Tensor, x_dst: Tensor) -> Tensor:
    first, linears = convs[0], children_of(convs, "lin_l")
    before = children_of(convs, "lin") if first.project else None
    p = Parameters(
        weights_of(linears),
        weights_of(children_of(convs, "lin_r")) if first.root_weight else None,
        biases_of(linears),
        None if before is None else weights_of(before),
        None if before is None else biases_of(before),
    )
    reduce = str(reduction_of(first.aggr_module))
    return hetero_aggregate(union, rows, x_src, x_dst, p, reduce, first_tie=False)


# ---------------------------------------------------------------------- attention layers


def _gat_ends(conv: Any) -> tuple[Any, Any]:
    return (conv.lin, conv.lin) if conv.lin is not None else (conv.lin_src, conv.lin_dst)


def _attention_kind(conv: Any, run: Any, ends: tuple[Any, Any]) -> Found:
    if conv.edge_dim is not None:
        return "edge-features"
    shapes = _shapes(*ends, conv.res)
    if shapes is None or (conv.res is not None and conv.res.bias is not None):
        return "parametrized"
    options = (conv.heads, conv.out_channels, bool(conv.concat), float(conv.negative_slope))
    config = (type(conv).__name__, options, dropout_of(conv), shapes, conv.bias is None,
              ends[0] is ends[1])  # fmt: skip
    loops = "replaced" if conv.add_self_loops else ""
    widths = ends[0].weight.shape[1], ends[1].weight.shape[1]
    return Kind(run, config, widths, loops, drops=dropout_of(conv) > 0)


def _gat_kind(conv: Any) -> Found:
    return _attention_kind(conv, _gat, _gat_ends(conv))


def _gatv2_kind(conv: Any) -> Found:
    if GATV2_PARTS * conv.out_channels > MAX_HEAD_DIM:
        return "head-dim"
    return _attention_kind(conv, _gatv2, (conv.lin_l, conv.lin_r))


def _gat(convs: Sequence[Any], union: Union, rows: Rows, x_src: Tensor, x_dst: Tensor) -> Tensor:
    first, ends = convs[0], [_gat_ends(conv) for conv in convs]
    src = weights_of([end[0] for end in ends])
    dst = src if ends[0][0] is ends[0][1] else weights_of([end[1] for end in ends])
    names = ("att_src", "att_dst")
    attentions = (stacked([getattr(c, n) for c in convs]).squeeze(1) for n in names)
    out = hetero_gat(
        union, x_src, x_dst, src, dst, *attentions,
        negative_slope=float(first.negative_slope), dropout_p=dropout_of(first),
    )  # fmt: skip
    return _combined(convs, union, rows, out, x_dst)


def _gatv2(convs: Sequence[Any], union: Union, rows: Rows, x_src: Tensor, x_dst: Tensor) -> Tensor:
    first, src, dst = (
        convs[0],
        children_of(convs, "lin_l"),
        children_of(convs, "lin_r"),
    )
    to_src, src_bias = weights_of(src), biases_of(src)
    shared = src[0] is dst[0]
    to_dst, dst_bias = (to_src, src_bias) if shared else (weights_of(dst), biases_of(dst))
    out = hetero_gatv2(
        union, x_src, x_dst, to_src, to_dst, stacked([c.att for c in convs]).squeeze(1),
        src_bias=src_bias, dst_bias=dst_bias,
        negative_slope=float(first.negative_slope), dropout_p=dropout_of(first),
    )  # fmt: skip
    return _combined(convs, union, rows, out, x_dst)


def _combined(convs: Sequence[Any], union: Union, rows: Rows, out: Tensor, x_dst: Tensor) -> Tensor:
    first = convs[0]
    residual = None if first.res is None else weights_of(children_of(convs, "res"))
    return combined(union, rows, out, x_dst, concat=bool(first.concat), residual=residual,
                    bias=_bias(convs))  # fmt: skip


_Static = Callable[[Any], "str | None"]
_KINDS: dict[str, tuple[_Static, Callable[[Any], Found]]] = {
    "GCNConv": (gcn.static_reason, _gcn_kind),
    "GraphConv": (graph_conv.static_reason, _graph_conv_kind),
    "SAGEConv": (sage.static_reason, _sage_kind),
    "GATConv": (gat.static_reason, _gat_kind),
    "GATv2Conv": (gatv2.static_reason, _gatv2_kind),
}
