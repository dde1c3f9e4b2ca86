"""What PyG's attention layers have in common: which calls are eligible, and reading their edges."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg import compiled
from gnn_backend.adapters.pyg.edges import (
    Variant,
    device_of,
    is_edge_list,
    num_edges,
    unsupported_form,
)
from gnn_backend.config import get_config
from gnn_backend.errors import Unsupported, invalid
from gnn_backend.layers.projection import projection_of
from gnn_backend.ops.heads import Heads
from gnn_backend.ops.projected_attention import Projection
from gnn_backend.runtime.launch import engine_for
from gnn_backend.runtime.selection import MAX_HEAD_DIM

PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
LINEAR = "torch_geometric.nn.dense.linear.Linear"


def own(conv: Any, name: str) -> Any:
    """A parameter of the layer, past ``Module.__getattr__`` where it is a plain one."""
    found = conv._parameters.get(name)
    return getattr(conv, name) if found is None else found


def heads_of(conv: Any) -> Heads:
    """How the layer combines its heads."""
    return "concat" if conv.concat else "mean"


def dropout_of(conv: Any) -> float:
    """Probability that this call drops an attention weight."""
    return float(conv.dropout) if conv.training else 0.0


def settings_reason(conv: Any) -> str | None:
    """Reason code if the dropout probability, slope or width is none that a kernel takes."""
    if not 0.0 <= conv.dropout <= 1.0:
        return "attention-dropout"
    slope = getattr(conv, "negative_slope", 0.0)
    if type(slope) not in (float, int):
        return "parametrized"
    # torch.compile traces no isfinite
    if not -math.inf < slope < math.inf:
        return "parametrized"
    if conv.heads < 1 or conv.out_channels < 1:
        return "empty"
    # Known before dropout draws, so that stock draws from the same random state.
    return "head-dim" if conv.out_channels > MAX_HEAD_DIM else None


def feature_reason(
    features: Any, device: torch.device, dtype: torch.dtype, *, engine: Any = None
) -> str | None:
    """Reason code why node features have no fused path beside parameters on ``device``.

    Parameters
    ----------
    features : Tensor or sequence of Tensor
        [rows, F] each.
    device, dtype
        Of the parameters.
    engine : callable, optional
        Finds the engine for a device and a dtype; by default that of attention.
    """
    parts = features if isinstance(features, (tuple, list)) else (features,)
    if len(parts) > 2:
        return "input-form"
    for part in parts:
        if type(part) not in PLAIN_TENSORS:
            return "subclass" if isinstance(part, Tensor) else "input-form"
        if part.dim() != 2:
            return "input-form"
        if part.device != device:
            return "device-mixed"
    if parts[0].dtype != dtype:
        dtype = torch.promote_types(parts[0].dtype, dtype)
    try:
        (engine or engine_for)(device, dtype)
    except Unsupported as error:
        return error.reason
    return None


def given_features(x: Any) -> Any:
    """Features that are there: of a pair, the destinations' may be None."""
    return x[:1] if isinstance(x, (tuple, list)) and len(x) == 2 and x[1] is None else x


def sizes_of(x: Any, size: Any) -> tuple[int, int] | None:
    """Sources and destinations, or None where only the edges would tell.

    Raises
    ------
    InvalidArgument
        ``size`` is not that of the features.
    """
    if isinstance(x, Tensor):
        found = (x.shape[0], x.shape[0])
    elif x[1] is not None:
        found = (x[0].shape[0], x[1].shape[0])
    elif size is None:
        return None
    else:
        found = (x[0].shape[0], size[1])
    if size is not None and tuple(size) != found:
        raise invalid("size", "not that of the features", size, found)
    return found


def edge_reason(
    conv: Any, edge_index: Any, device: torch.device, *, self_loops: bool, square: bool
) -> str | None:
    """Reason code why an edge input has no fused path.

    Parameters
    ----------
    conv : MessagePassing
    edge_index : Tensor [2, E] or adjacency
    device : torch.device
        Of the features.
    self_loops : bool
        Whether the layer adds them.
    square : bool
        Whether there are as many sources as destinations.
    """
    reverse = conv.flow == "target_to_source"
    reason = unsupported_form(edge_index, reverse=reverse, self_loops=self_loops)
    if reason is not None:
        return reason
    if torch.compiler.is_compiling() and not compiled.takes(edge_index):
        return "graph-type"
    if device_of(edge_index) != device:
        return "device-mixed"
    if reverse and not square:
        return "flow"
    least = get_config().min_edges
    return "too-small" if least > 0 and num_edges(edge_index) < least else None


def edge_wise_reason(
    edge_index: Any, edge_attr: Any, returns: bool, device: torch.device
) -> str | None:
    """Reason code why edge features that are given, or weights that are asked for, are not fused.

    Raises
    ------
    InvalidArgument
        The features are none of these edges, which the stock layer rejects.
    """
    if not is_edge_list(edge_index):  # PyG has an order of its own for the values of adjacencies
        return (
            "edge-features" if edge_attr is not None else "returns-attention" if returns else None
        )
    if edge_attr is None:
        return None
    if type(edge_attr) not in PLAIN_TENSORS or edge_attr.layout is not torch.strided:
        return "edge-features"
    if edge_attr.device != device:
        return "device-mixed"
    if not edge_attr.is_floating_point() or edge_attr.dim() not in (1, 2):
        return "edge-features"
    if edge_attr.shape[0] != edge_index.shape[1]:
        expected = f"[{edge_index.shape[1]}, F]"
        raise invalid("edge_attr", "wrong number of rows", tuple(edge_attr.shape), expected)
    return None


def rewritten(
    edge_index: Tensor, edge_attr: Tensor | None, variant: Variant, fill_value: Any
) -> tuple[Tensor, Tensor | None]:
    """Edges and their features as the stock layer has them once self-loops are rewritten."""
    from torch_geometric.utils import add_self_loops, remove_self_loops

    if not variant.self_loops:
        return edge_index, edge_attr
    count = min(variant.num_src, variant.num_dst)
    kept, features = remove_self_loops(edge_index, edge_attr)
    return add_self_loops(  # type: ignore[no-any-return]
        kept, features, fill_value=fill_value, num_nodes=count
    )


def as_columns(edge_attr: Tensor | None) -> Tensor | None:
    """Edge features [E, F]; PyG takes [E] for one column."""
    return edge_attr.view(-1, 1) if edge_attr is not None and edge_attr.dim() == 1 else edge_attr


def plain_weight(linear: Any, features: Tensor, width: int) -> Tensor | None:
    """Weight of a linear module without bias that need not be called, or None."""
    found = projection_of(linear, LINEAR, features.dtype, width)
    if found is None or found.bias is not None or found.weight.shape[1] != features.shape[-1]:
        return None
    return found.weight


def sums_plainly(
    att: Tensor, rows: int, *, heads: Heads, residual: Tensor | None, bias: Tensor | None
) -> bool:
    """Whether what is added to the result needs neither broadcasting of rows nor promotion."""
    width = att.numel() if heads == "concat" else att.shape[-1]
    if bias is not None and (bias.shape != (width,) or bias.dtype is not att.dtype):
        return False
    return residual is None or (residual.shape == (rows, width) and residual.dtype is att.dtype)


def projections(
    linears: tuple[Any, Any], features: tuple[Tensor, Tensor | None], att: Tensor
) -> tuple[Projection, Projection | None] | None:
    """The layer's projections, if they can be made part of attention; None: call the modules.

    Parameters
    ----------
    linears : pair of module
        Of the sources and of the destinations; None: the destinations are as the sources are.
    features : pair of Tensor
        [num_src, F_src] and [num_dst, F_dst] or None.
    att : Tensor
        As many numbers as a projected row, in its dtype.
    """
    dtype, width = att.dtype, att.numel()
    if any(t is not None and (t.dtype is not dtype or t.layout is not torch.strided)
           for t in features):  # fmt: skip
        return None
    src = projection_of(linears[0], LINEAR, dtype, width)
    if src is None or linears[1] is None:
        return None if src is None else (src, None)
    dst = projection_of(linears[1], LINEAR, dtype, width)
    return None if dst is None else (src, dst)


def message_dtype(device: torch.device, *tensors: Tensor) -> torch.dtype:
    """Dtype of the stock layer's messages, made from tensors of several dtypes.

    Type promotion decides it (under autocast: 16-bit projections, float32 parameters). CUDA's
    autocast runs the sum and the exponential of the scores in float32 in any case.
    """
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    if dtype.itemsize == 2 and device.type == "cuda" and torch.is_autocast_enabled("cuda"):
        return torch.float32
    return dtype
