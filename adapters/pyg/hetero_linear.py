"""PyG's ``HeteroLinear`` and ``HeteroDictLinear``: which calls run fused, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gnn_backend.adapters.pyg.attention import LINEAR
from gnn_backend.adapters.tensor_cache import kept_order
from gnn_backend.adapters.typed_rows import (
    PLAIN_TENSORS,
    linears_reason,
    map_tables,
    rows_reason,
    types_reason,
)
from gnn_backend.layers.hetero.linear import linear_by_type


def eligible(linear: Any, x: Any, type_vec: Any) -> str | None:
    """Reason code why this call of ``HeteroLinear.forward`` has no fused path, or None."""
    reason = static_reason(linear) or rows_reason([x], linear.weight, linear.weight.shape[1])
    if reason is not None:
        return reason
    return types_reason(type_vec, x)


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
    rows = kept_order(type_vec, len(linear.weight))
    return linear_by_type(x, linear.weight, linear.bias, rows)


# ---------------------------------------------------------------------- HeteroDictLinear


def dict_eligible(linear: Any, x_dict: Any) -> str | None:
    """Reason code why this call of ``HeteroDictLinear.forward`` has no fused path, or None."""
    if not isinstance(x_dict, Mapping):
        return "input-form"
    names = names_of(linear, x_dict)
    lins = [linear.lins[name] for name in names]
    return linears_reason(lins, LINEAR, [x_dict[name] for name in names])


def dict_static_reason(linear: Any) -> str | None:
    """The part of :func:`dict_eligible` that the layer alone decides."""
    return None if linear.lins else "empty"


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
    found = map_tables([linear.lins[name] for name in names], [x_dict[name] for name in names])
    return dict(zip(names, found, strict=True))


def names_of(linear: Any, x_dict: Mapping[str, Any]) -> list[str]:
    """Keys of the features that a ``HeteroDictLinear`` maps, in its own order."""
    return [name for name in linear.lins if name in x_dict]
