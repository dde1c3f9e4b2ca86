"""DGL's ``TypedLinear`` and ``HeteroLinear``: which calls run fused, and the fused forwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gnn_backend.adapters.dgl.typed import weight_of
from gnn_backend.adapters.tensor_cache import kept_order
from gnn_backend.adapters.typed_rows import linears_reason, map_tables, rows_reason, types_reason
from gnn_backend.layers.hetero.linear import linear_by_type

_LINEAR = "torch.nn.modules.linear.Linear"


def eligible(linear: Any, x: Any, x_type: Any, sorted_by_type: bool = False) -> str | None:
    """Reason code why this call of ``TypedLinear.forward`` has no fused path, or None."""
    reason = rows_reason([x], linear.W, linear.in_size)
    return static_reason(linear) or reason or types_reason(x_type, x)


def static_reason(linear: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return "parametrized" if linear.regularizer not in (None, "basis", "bdd") else None


def fast(linear: Any, x: Tensor, x_type: Tensor, sorted_by_type: bool = False) -> Tensor:
    """Fused ``TypedLinear.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    linear : dgl.nn.pytorch.TypedLinear
    x : Tensor [N, I]
    x_type : int32 or int64 Tensor [N]
    sorted_by_type : bool
        Not needed: whether rows are sorted by their types is found out once.

    Returns
    -------
    Tensor [N, O]

    Raises
    ------
    InvalidArgument
        A type is out of range.
    """
    weight, rows = weight_of(linear), kept_order(x_type, linear.num_types)
    if weight.dim() == 3:
        return linear_by_type(x, weight, None, rows)
    by_blocks = x.view(len(x), *weight.shape[1:-1])
    return linear_by_type(by_blocks, weight, None, rows).flatten(1)


# ---------------------------------------------------------------------- HeteroLinear


def hetero_eligible(linear: Any, feat: Any) -> str | None:
    """Reason code why this call of ``HeteroLinear.forward`` has no fused path, or None."""
    if not isinstance(feat, Mapping) or any(str(name) not in linear.linears for name in feat):
        return "input-form"
    linears = [linear.linears[str(name)] for name in feat]
    return linears_reason(linears, _LINEAR, [*feat.values()])


def hetero_static_reason(linear: Any) -> str | None:
    """The part of :func:`hetero_eligible` that the layer alone decides."""
    return None if linear.linears else "empty"


def hetero_fast(linear: Any, feat: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
    """Fused ``HeteroLinear.forward`` for a call that :func:`hetero_eligible` accepts.

    Parameters
    ----------
    linear : dgl.nn.pytorch.HeteroLinear
    feat : mapping to Tensor [N, I]

    Returns
    -------
    dict of Tensor [N, O]
    """
    linears = [linear.linears[str(name)] for name in feat]
    return dict(zip(feat, map_tables(linears, [*feat.values()]), strict=True))
