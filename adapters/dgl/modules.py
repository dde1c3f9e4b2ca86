"""DGL layers that are accelerated without ``enable()``; importing this imports DGL.

Arguments, parameters and ``state_dict`` are those of the stock classes. What has no fused path
runs the stock code and is counted, exactly as under :func:`gnn_backend.enable`; the mode is the
one given there, or else that of ``GNN_BACKEND_MODE``. Inside a ``disabled()`` block the stock
code runs.

A relation slice ``hg[etype]`` is a new object each time; unless the package is enabled, keep the
slice and pass it again, so that its structure is prepared once.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import dgl.nn.pytorch

from gnn_backend.adapters.dgl import agnn, conv, dot_gat, edge_gat, gat
from gnn_backend.adapters.dgl.dispatch import DGLDispatcher
from gnn_backend.patching import stock


def _accelerated(layer: str, adapter: ModuleType) -> Any:
    """The accelerated ``forward`` of a stock layer."""
    dispatcher = DGLDispatcher(
        f"dgl.{layer}",
        adapter.eligible,
        adapter.fast,
        saves=adapter.edgewise_bytes,
        static=adapter.static_reason,
    )
    return dispatcher(stock(getattr(dgl.nn.pytorch, layer).forward), "auto")


_agnnconv = _accelerated("AGNNConv", agnn)
_dotgatconv = _accelerated("DotGatConv", dot_gat)
_edgegatconv = _accelerated("EdgeGATConv", edge_gat)
_gatconv = _accelerated("GATConv", gat)
_gatv2conv = _accelerated("GATv2Conv", conv)


class AGNNConv(dgl.nn.pytorch.AGNNConv):
    """:class:`dgl.nn.pytorch.AGNNConv`, accelerated without ``enable()``."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; see :class:`dgl.nn.pytorch.AGNNConv`."""
        return _agnnconv(self, *args, **kwargs)


class DotGatConv(dgl.nn.pytorch.DotGatConv):
    """:class:`dgl.nn.pytorch.DotGatConv`, accelerated without ``enable()``."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; see :class:`dgl.nn.pytorch.DotGatConv`."""
        return _dotgatconv(self, *args, **kwargs)


class EdgeGATConv(dgl.nn.pytorch.EdgeGATConv):
    """:class:`dgl.nn.pytorch.EdgeGATConv`, accelerated without ``enable()``."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; see :class:`dgl.nn.pytorch.EdgeGATConv`."""
        return _edgegatconv(self, *args, **kwargs)


class GATConv(dgl.nn.pytorch.GATConv):
    """:class:`dgl.nn.pytorch.GATConv`, accelerated without ``enable()``."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; see :class:`dgl.nn.pytorch.GATConv`."""
        return _gatconv(self, *args, **kwargs)


class GATv2Conv(dgl.nn.pytorch.GATv2Conv):
    """:class:`dgl.nn.pytorch.GATv2Conv`, accelerated without ``enable()``."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; see :class:`dgl.nn.pytorch.GATv2Conv`."""
        return _gatv2conv(self, *args, **kwargs)
