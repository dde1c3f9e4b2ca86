"""PyG's ``FusedGATConv``, which takes its graph in another form, and whose stock needs dgNN.

The judge is stock's ``GATConv`` with the same weights, its rows attending to their columns.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from gnn_backend.bench import hosts
from gnn_backend.compare import Sample

if TYPE_CHECKING:
    from gnn_backend.bench.samples import Request

NAME = "FusedGATConv"


def _sizes(request: Request) -> tuple[int, int, int]:
    return request.shape.in_dim, request.shape.dim, request.shape.heads


def sample(request: Request) -> Sample:
    """The layer with seeded weights, features, and the graph as rows and columns."""
    from gnn_backend.api import enabled

    data, shape, device, dtype = request.data, request.shape, request.device, request.dtype
    cls = hosts.layer_class("pyg", NAME)
    options = {"add_self_loops": False, **request.options}
    torch.manual_seed(0)
    with enabled(hosts="pyg"):  # stock asks for dgNN
        layer = cls(*_sizes(request), **options).to(device=device, dtype=dtype)
    size = (data.num_nodes, data.num_nodes)
    csr, csc, perm = cls.to_graph_format(data.edge_index, size=size)  # type: ignore[attr-defined]
    csr, csc = (tuple(part.to(device) for part in both) for both in (csr, csc))
    x = hosts.features(data, shape, device, dtype)
    return Sample(layer, (x, csr, csc, perm.to(device)))


def stock(request: Request) -> Sample:
    """``GATConv`` on the CPU, on the same edges and features and with the same weights."""
    on_cpu = dataclasses.replace(request, device="cpu")
    options = {"add_self_loops": False, "flow": "target_to_source", **request.options}
    cls = hosts.layer_class("pyg", "GATConv")
    layer = cls(*_sizes(request), **options).to(dtype=request.dtype)
    layer.load_state_dict(sample(on_cpu).layer.state_dict())
    x = hosts.features(request.data, request.shape, "cpu", request.dtype)
    return Sample(layer, (x, request.data.edge_index.cpu()))
