"""PyG's ``HeteroLinear`` and ``HeteroDictLinear``: which calls run fused, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.aggregating import aggregation_engine
from gnn_backend.adapters.pyg.attention import LINEAR, PLAIN_TENSORS
from gnn_backend.adapters.pyg.message_passing import transformed_reason
from gnn_backend.adapters.pyg.tensor_cache import type_orders
from gnn_backend.errors import Unsupported
from gnn_backend.layers.hetero.linear import linear_by_type, linear_of_tables, order_of
from gnn_backend.layers.projection import projection_of

_INDEX_DTYPES = (torch.int32, torch.int64)


def eligible(linear: Any, x: Any, type_vec: Any) -> str | None:
    """Reason code why this call of ``HeteroLinear.forward`` has no fused path, or None."""
    reason = static_reason(linear) or rows_reason([x], linear.weight)
    if reason is not None:
        return reason
    if not isinstance(type_vec, Tensor) or type_vec.dtype not in _INDEX_DTYPES:
        return "input-form"
    if type_vec.device != x.device:
        return "device-mixed"
    fits = type_vec.shape == (len(x),) and x.shape[1] == linear.weight.shape[1]
    return None if fits else "input-form"


def static_reason(linear: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    weight, bias = linear.weight, linear.bias
    if type(weight) not in PLAIN_TENSORS or weight.dim() != 3:
        return "parametrized"
    if bias is None:
        return None
    plain = type(bias) in PLAIN_TENSORS and bias.shape == weight.shape[::2]
    return "parametrized" if not plain else None if bias.dtype is weight.dtype else "dtype-mixed"


def fast(linear: Any, x: Tensor, type_vec: Tensor) -> Tensor:
    """Fused ``HeteroLinear.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    linear : torch_geometric.nn.HeteroLinear
    x : Tensor [N, I]
    type_vec : int32 or int64 Tensor [N]
        In any order; where it is sorted no row is moved.

    Returns
    -------
    Tensor [N, O]

    Raises
    ------
    InvalidArgument
        A type is out of range.
    """
    types = len(linear.weight)
    rows = type_orders.get([type_vec], types, lambda: order_of(type_vec, types))
    return linear_by_type(x, linear.weight, linear.bias, rows)


# ---------------------------------------------------------------------- HeteroDictLinear


def dict_eligible(linear: Any, x_dict: Any) -> str | None:
    """Reason code why this call of ``HeteroDictLinear.forward`` has no fused path, or None."""
    if not isinstance(x_dict, Mapping):
        return "input-form"
    names = names_of(linear, x_dict)
    if not names:
        return "empty"
    weight = linear.lins[names[0]]._parameters.get("weight")
    if type(weight) not in PLAIN_TENSORS:
        return "parametrized"
    reason = rows_reason([x_dict[name] for name in names], weight)
    return reason or linears_reason([linear.lins[name] for name in names], x_dict, names)


def dict_static_reason(linear: Any) -> str | None:
    """The part of :func:`dict_eligible` that the layer alone decides."""
    lins = list(linear.lins.values())
    if not lins:
        return "empty"
    biased = {lin.bias is None for lin in lins}
    return "parametrized" if len(biased) > 1 else None


def dict_fast(linear: Any, x_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Fused ``HeteroDictLinear.forward`` for a call that :func:`dict_eligible` accepts.

    Parameters
    ----------
    linear : torch_geometric.nn.HeteroDictLinear
    x_dict : mapping of str to Tensor [N, I]

    Returns
    -------
    dict of str to Tensor [N, O]
        In the order of the layer's own types; keys that it has not are left out.
    """
    names = names_of(linear, x_dict)
    lins = [linear.lins[name] for name in names]
    biases = None if lins[0].bias is None else [lin.bias for lin in lins]
    tables = [x_dict[name] for name in names]
    found = linear_of_tables(tables, [lin.weight for lin in lins], biases)
    return dict(zip(names, found, strict=True))


def names_of(linear: Any, x_dict: Mapping[str, Any]) -> list[str]:
    """Keys of the features that a ``HeteroDictLinear`` maps, in its own order."""
    return [name for name in linear.lins if name in x_dict]


def linears_reason(
    lins: Sequence[Any], x_dict: Mapping[str, Tensor], names: Sequence[str]
) -> str | None:
    """Reason code why linear modules of features [N, I] by name are not one product, or None."""
    width, bias = lins[0].out_channels, lins[0].bias is None
    for lin, name in zip(lins, names, strict=True):
        found = projection_of(lin, LINEAR, x_dict[name].dtype, width)
        if found is None or (found.bias is None) is not bias:
            return "parametrized"
        if found.weight.device != x_dict[name].device:
            return "device-mixed"
        if found.weight.shape[1] != x_dict[name].shape[1]:
            return "input-form"
    return None


# ---------------------------------------------------------------------- both


def rows_reason(tables: Sequence[Any], weight: Tensor) -> str | None:
    """Reason code why tables [N, I] have no typed product beside a weight, or None."""
    if torch.compiler.is_compiling():
        return "compiled"
    reason = transformed_reason()
    if reason is not None:
        return reason
    if torch.is_autocast_enabled(weight.device.type):
        return "autocast"
    for x in tables:
        if type(x) not in PLAIN_TENSORS:
            return "subclass" if isinstance(x, Tensor) else "input-form"
        if x.dim() != 2 or x.layout is not torch.strided:
            return "input-form"
        if x.device != weight.device:
            return "device-mixed"
        if x.dtype is not weight.dtype:
            return "dtype-mixed"
    if not sum(x.numel() for x in tables):
        return "empty"
    try:
        aggregation_engine(weight.device, weight.dtype)
    except Unsupported as error:
        return error.reason
    return None
