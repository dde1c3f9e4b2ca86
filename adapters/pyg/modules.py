"""PyG layers that are accelerated without ``enable()``; importing this imports PyG.

Arguments, parameters and ``state_dict`` are those of the stock classes. What has no fused path
runs the stock code and is counted, exactly as under :func:`gnn_backend.enable`; the mode is the
one given there, or else that of ``GNN_BACKEND_MODE``. Inside a ``disabled()`` block the stock
code runs.

PyG looks for declarations of types in the source of a class, which it finds by the class's bare
name, so that these classes hide those of the same names that they extend: each repeats them.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch_geometric.nn
from torch import Tensor  # noqa: F401, named in the declarations below
from torch_geometric.typing import OptPairTensor, OptTensor, PairTensor  # noqa: F401

from gnn_backend.adapters.pyg import agnn, conv, gat, supergat, transformer
from gnn_backend.dispatch import Dispatcher
from gnn_backend.patching import stock


def _accelerated(layer: str, adapter: ModuleType) -> Any:
    """The accelerated ``forward`` of a stock layer."""
    dispatcher = Dispatcher(
        f"pyg.{layer}",
        adapter.eligible,
        adapter.fast,
        saves=adapter.edgewise_bytes,
        static=adapter.static_reason,
    )
    return dispatcher(stock(getattr(torch_geometric.nn, layer).forward), "auto")


_gatconv = _accelerated("GATConv", gat)
_gatv2conv = _accelerated("GATv2Conv", conv)
_transformerconv = _accelerated("TransformerConv", transformer)
_supergatconv = _accelerated("SuperGATConv", supergat)
_agnnconv = _accelerated("AGNNConv", agnn)


class GATConv(torch_geometric.nn.GATConv):
    """:class:`torch_geometric.nn.GATConv`, accelerated without ``enable()``."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; see :class:`torch_geometric.nn.GATConv`."""
        # edge_updater_type: (alpha: OptPairTensor, edge_attr: OptTensor)
        # propagate_type: (x: OptPairTensor, alpha: Tensor)
        return _gatconv(self, *args, **kwargs)


class GATv2Conv(torch_geometric.nn.GATv2Conv):
    """:class:`torch_geometric.nn.GATv2Conv`, accelerated without ``enable()``."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; see :class:`torch_geometric.nn.GATv2Conv`."""
        # edge_updater_type: (x: PairTensor, edge_attr: OptTensor)
        # propagate_type: (x: PairTensor, alpha: Tensor)
        return _gatv2conv(self, *args, **kwargs)


class TransformerConv(torch_geometric.nn.TransformerConv):
    """:class:`torch_geometric.nn.TransformerConv`, accelerated without ``enable()``."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; see :class:`torch_geometric.nn.TransformerConv`."""
        # propagate_type: (query: Tensor, key: Tensor, value: Tensor, edge_attr: OptTensor)
        return _transformerconv(self, *args, **kwargs)


class AGNNConv(torch_geometric.nn.AGNNConv):
    """:class:`torch_geometric.nn.AGNNConv`, accelerated without ``enable()``."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; see :class:`torch_geometric.nn.AGNNConv`."""
        # propagate_type: (x: Tensor, x_norm: Tensor)
        return _agnnconv(self, *args, **kwargs)


class SuperGATConv(torch_geometric.nn.SuperGATConv):
    """:class:`torch_geometric.nn.SuperGATConv`, accelerated without ``enable()``."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; see :class:`torch_geometric.nn.SuperGATConv`."""
        # propagate_type: (x: Tensor)
        return _supergatconv(self, *args, **kwargs)
