"""PyG's layers that take more than features and edges, and those that are no convolutions.

Both types of nodes, ``a`` and ``b``, have the nodes of the graph, three relations its edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gnn_backend.bench import hosts
from gnn_backend.compare import Sample

if TYPE_CHECKING:
    from gnn_backend.bench.samples import Request

TYPES = 3
"""Types of edges, and of rows, of layers that take them as numbers."""
NODES = ("a", "b")
RELATIONS = (("a", "cites", "b"), ("b", "cited_by", "a"), ("a", "like", "a"))


def sample(request: Request) -> Sample:
    """One of :data:`LAYERS` with seeded weights and inputs."""
    torch.manual_seed(0)
    layer, args = LAYERS[request.layer](request)
    return Sample(layer.to(device=request.device, dtype=request.dtype), args)


# ---------------------------------------------------------------------- inputs


def _x(request: Request, seed: int = 1, width: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(request.data.num_nodes, width or request.shape.in_dim, generator=generator)
    return x.to(device=request.device, dtype=request.dtype).requires_grad_()


def _x_dict(request: Request, *widths: int) -> dict[str, Tensor]:
    given = widths or (request.shape.in_dim,) * len(NODES)
    return {n: _x(request, i, w) for i, (n, w) in enumerate(zip(NODES, given, strict=True))}


def _edges(request: Request) -> dict[tuple[str, str, str], Tensor]:
    edge_index = request.data.edge_index.to(request.device)
    return dict(zip(RELATIONS, (edge_index, edge_index.flip(0), edge_index.clone()), strict=True))


def _types(request: Request, count: int) -> Tensor:
    return torch.arange(count, device=request.device) * 7 % TYPES


# ---------------------------------------------------------------------- layers

Made = tuple[nn.Module, tuple[Any, ...]]


def _typed_edges(request: Request) -> Made:
    cls = hosts.layer_class("pyg", request.layer)
    layer = hosts.build(cls, request.shape, num_relations=TYPES, **request.options)
    edge_index = request.data.edge_index.to(request.device)
    return layer, (_x(request), edge_index, _types(request, edge_index.shape[1]))


def _hgt(request: Request) -> Made:
    from torch_geometric.nn import HGTConv

    shape = request.shape
    metadata = ([*NODES], [*RELATIONS])
    layer = HGTConv(shape.in_dim, shape.dim * shape.heads, metadata, shape.heads, **request.options)
    return layer, (_x_dict(request), _edges(request))


def _hetero_conv(request: Request) -> Made:
    from torch_geometric.nn import HeteroConv, SAGEConv

    convs = {r: SAGEConv(request.shape.in_dim, request.shape.dim) for r in RELATIONS}
    return HeteroConv(convs, **request.options), (_x_dict(request), _edges(request))


class _Model(nn.Module):
    def __init__(self, in_dim: int, dim: int) -> None:
        from torch_geometric.nn import SAGEConv

        super().__init__()
        self.conv = SAGEConv((in_dim, in_dim), dim)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)  # type: ignore[no-any-return]


def _to_hetero(request: Request) -> Made:
    from torch_geometric.nn import to_hetero

    from gnn_backend.api import enabled

    model = _Model(request.shape.in_dim, request.shape.dim)
    with enabled(hosts="pyg"):
        made = to_hetero(model, ([*NODES], [*RELATIONS]), **request.options)
    return made, (_x_dict(request), _edges(request))


def _hetero_linear(request: Request) -> Made:
    from torch_geometric.nn import HeteroLinear

    x = _x(request)
    layer = HeteroLinear(request.shape.in_dim, request.shape.dim, TYPES, **request.options)
    return layer, (x, _types(request, len(x)))


def _hetero_dict_linear(request: Request) -> Made:
    from torch_geometric.nn import HeteroDictLinear

    widths = (request.shape.in_dim, request.shape.in_dim // 2)
    by_type = dict(zip(NODES, widths, strict=True))
    layer = HeteroDictLinear(by_type, request.shape.dim, **request.options)
    return layer, (_x_dict(request, *widths),)


CONVOLUTIONS: dict[str, Callable[[Request], Made]] = {
    **dict.fromkeys(("FastRGCNConv", "RGATConv", "RGCNConv"), _typed_edges),
    "HGTConv": _hgt,
    "HeteroConv": _hetero_conv,
}
OTHERS: dict[str, Callable[[Request], Made]] = {
    "HeteroDictLinear": _hetero_dict_linear,
    "HeteroLinear": _hetero_linear,
    "to_hetero": _to_hetero,
}
"""What is no convolution, by the name that profiles show."""
LAYERS = {**CONVOLUTIONS, **OTHERS}
