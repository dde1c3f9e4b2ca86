"""PyG layers that are accelerated without ``enable()``; importing this imports PyG."""

from __future__ import annotations

from typing import Any

import torch_geometric.nn
from torch import Tensor  # noqa: F401, named in the declarations below
from torch_geometric.typing import OptTensor, PairTensor  # noqa: F401

from gnn_backend.adapters.pyg.conv import edgewise_bytes, eligible, fast, static_reason
from gnn_backend.dispatch import Dispatcher
from gnn_backend.patching import stock

_dispatcher = Dispatcher(
    "pyg.GATv2Conv", eligible, fast, saves=edgewise_bytes, static=static_reason
)
_forward = _dispatcher(stock(torch_geometric.nn.GATv2Conv.forward), "auto")


class GATv2Conv(torch_geometric.nn.GATv2Conv):
    """:class:`torch_geometric.nn.GATv2Conv`, run on the fused kernels without ``enable()``.

    Arguments, parameters and ``state_dict`` are those of the stock class. What has no fused path
    runs the stock code and is counted, exactly as under :func:`gnn_backend.enable`; the mode is
    the one given there, or else that of ``GNN_BACKEND_MODE``. Inside a ``disabled()`` block the
    stock code runs.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; see :class:`torch_geometric.nn.GATv2Conv`."""
        # PyG looks for these declarations in the source of a class, which it finds by the class's
        # bare name, so that this class hides the one of the same name that it extends:
        # edge_updater_type: (x: PairTensor, edge_attr: OptTensor)
        # propagate_type: (x: PairTensor, alpha: Tensor)
        return _forward(self, *args, **kwargs)
