"""What PyG's layers of typed edges have in common: their types, weights and relations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.aggregating import plain_graph
from gnn_backend.errors import invalid
from gnn_backend.graph.relations import Relations, relations_of


def types_reason(edge_type: Any, edge_index: Any, device: torch.device) -> str | None:
    """Reason code why types of edges are not read, or None.

    Raises
    ------
    InvalidArgument
        They are not one for each edge.
    """
    if not isinstance(edge_type, Tensor) or edge_type.dim() != 1:
        return "input-form"
    if edge_type.is_floating_point() or edge_type.dtype is torch.bool:
        return "input-form"
    if edge_type.device != device:
        return "device-mixed"
    if edge_type.numel() != edge_index.shape[1]:
        expected = f"[{edge_index.shape[1]}]"
        raise invalid("edge_type", "wrong number", tuple(edge_type.shape), expected)
    return None


def typed_graph(
    conv: Any, x: Any, edge_index: Any, edge_type: Tensor, size: Any = None
) -> Relations:
    """The relations of a layer that leaves the edges as they are, kept with its graph."""
    return relations_of(plain_graph(conv, x, edge_index, size), edge_type, conv.num_relations)


def weight_of(conv: Any, weight: Tensor, comp: Tensor | None) -> Tensor:
    """A weight for each relation: [R, I, O], or [R, B, I / B, O / B] of blocks.

    Parameters
    ----------
    conv : MessagePassing
    weight : Tensor
        [R, I, O], [B, I, O] of bases, or [R, B, I / B, O / B] of blocks.
    comp : Tensor [R, B], optional
        How bases make up the relations' weights.
    """
    if comp is None:
        return weight
    return (comp @ weight.flatten(1)).view(conv.num_relations, *weight.shape[1:])


def by_blocks(x: Tensor, weight: Tensor) -> Tensor:
    """Rows [N, I] as a weight takes them: [N, B, I / B] where it is one of blocks."""
    return x.view(len(x), *weight.shape[1:-1]) if weight.dim() == 4 else x
