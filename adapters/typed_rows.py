"""What both hosts' linear maps by type share: which rows they take, and tables side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.relations import PLAIN_TENSORS
from gnn_backend.adapters.transformations import transformed_reason
from gnn_backend.errors import Unsupported
from gnn_backend.layers.hetero.linear import linear_of_tables
from gnn_backend.layers.projection import projection_of
from gnn_backend.runtime import launch

__all__ = ["PLAIN_TENSORS", "linears_reason", "map_tables", "rows_reason", "types_reason"]

_INDEX_DTYPES = (torch.int32, torch.int64)


def rows_reason(tables: Sequence[Any], weight: Tensor, width: int | None = None) -> str | None:
    """Reason code why tables [N, I] have no typed product beside a weight, or None.

    Parameters
    ----------
    tables : sequence
    weight : Tensor
    width : int, optional
        That all tables have to have.
    """
    if torch.compiler.is_compiling():
        return "compiled"
    if torch.is_autocast_enabled(weight.device.type):
        return "autocast"
    for x in tables:
        if type(x) not in PLAIN_TENSORS:
            return "subclass" if isinstance(x, Tensor) else "input-form"
        if x.dim() != 2 or x.layout is not torch.strided or x.shape[1] != (width or x.shape[1]):
            return "input-form"
        if x.device != weight.device:
            return "device-mixed"
        if x.dtype is not weight.dtype:
            return "dtype-mixed"
    if not sum(x.numel() for x in tables):
        return "empty"
    try:
        launch.aggregation_engine(weight.device, weight.dtype)
    except Unsupported as error:
        return error.reason
    return transformed_reason()


def types_reason(types: Any, x: Tensor) -> str | None:
    """Reason code why these are no types of the rows [N, I], or None."""
    if not isinstance(types, Tensor) or types.dtype not in _INDEX_DTYPES:
        return "input-form"
    if types.device != x.device:
        return "device-mixed"
    return None if types.shape == x.shape[:1] else "input-form"


def linears_reason(linears: Sequence[Any], cls: str, tables: Sequence[Any]) -> str | None:
    """Reason code why linear modules of tables [N, I] are not one product, or None.

    Parameters
    ----------
    linears : sequence of Module
    cls : str
        The host's linear class, ``module.Name``.
    tables : sequence
        What each is given.
    """
    if not linears:
        return "empty"
    weights = [linear._parameters.get("weight") for linear in linears]
    if any(type(w) not in PLAIN_TENSORS or w.dim() != 2 for w in weights):  # type: ignore[union-attr]
        return "parametrized"
    first: Any = weights[0]
    reason = rows_reason(tables, first)
    if reason is not None:
        return reason
    bias = linears[0].bias is None
    for linear, x in zip(linears, tables, strict=True):
        found = projection_of(linear, cls, first.dtype, len(first))
        if found is None or (found.bias is None) is not bias:
            return "parametrized"
        if found.weight.device != first.device:
            return "device-mixed"
        if found.weight.shape[1] != x.shape[1]:
            return "input-form"
    return None


def map_tables(linears: Sequence[Any], tables: Sequence[Tensor]) -> list[Tensor]:
    """What linear modules that :func:`linears_reason` accepts give of tables [N, I]."""
    biases = None if linears[0].bias is None else [linear.bias for linear in linears]
    return linear_of_tables(tables, [linear.weight for linear in linears], biases)
