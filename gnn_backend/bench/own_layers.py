"""The package's own layers, which no host has; the judge is the same layer over plain torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_backend.bench import hosts
from gnn_backend.compare import Sample
from gnn_backend.graph import Graph
from gnn_backend.nn import GraphTransformerConv
from gnn_backend.ops.functors import FUNCTORS

if TYPE_CHECKING:
    from gnn_backend.bench.samples import Request

HOST = "gnn_backend"


class PlainGraphTransformerConv(GraphTransformerConv):
    """The layer without edge features, its attention by the twin of the operator."""

    def forward(self, graph: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        shape = (-1, self.heads, self.out_channels)
        tables = {"q_dst": self.query, "k_src": self.key, "v_src": self.value}
        operands = {name: project(x).view(shape) for name, project in tables.items()}
        structure = Graph.from_edge_index(graph, x.shape[0], x.shape[0])
        scale = 1 / math.sqrt(self.out_channels)
        out = FUNCTORS["dot"].twin(structure, operands, {"scale": scale})
        return out.flatten(1) + self.skip(x)  # type: ignore[no-any-return,misc]


_LAYERS = {"nn.GraphTransformerConv": (GraphTransformerConv, PlainGraphTransformerConv)}
NAMES = tuple(_LAYERS)


def samples(request: Request) -> tuple[Sample, Sample]:
    """A layer of ours on the request's device, and its judge on the CPU."""
    data, shape = request.data, request.shape
    made = []
    pairs = zip(_LAYERS[request.layer], (request.device, "cpu"), strict=True)
    for cls, device in pairs:
        torch.manual_seed(0)
        layer = cls(shape.in_dim, shape.dim, shape.heads).to(device, request.dtype)
        x = hosts.features(data, shape, device, request.dtype)
        made.append(Sample(layer, (data.edge_index.to(device), x)))
    return made[0], made[1]
