"""DGL layers that are accelerated without ``enable()``; importing this imports DGL."""

from __future__ import annotations

from typing import Any

import dgl.nn.pytorch

from gnn_backend.adapters.dgl.conv import edgewise_bytes, eligible, fast, static_reason
from gnn_backend.adapters.dgl.dispatch import DGLDispatcher
from gnn_backend.patching import stock

_dispatcher = DGLDispatcher(
    "dgl.GATv2Conv", eligible, fast, saves=edgewise_bytes, static=static_reason
)
_forward = _dispatcher(stock(dgl.nn.pytorch.GATv2Conv.forward), "auto")


class GATv2Conv(dgl.nn.pytorch.GATv2Conv):
    """:class:`dgl.nn.pytorch.GATv2Conv`, run on the fused kernels without ``enable()``.

    Arguments, parameters and ``state_dict`` are those of the stock class. What has no fused path
    runs the stock code and is counted, exactly as under :func:`gnn_backend.enable`; the mode is
    the one given there, or else that of ``GNN_BACKEND_MODE``. Inside a ``disabled()`` block the
    stock code runs.

    A relation slice ``hg[etype]`` is a new object each time; unless the package is enabled, keep
    the slice and pass it again, so that its structure is prepared once.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; see :class:`dgl.nn.pytorch.GATv2Conv`."""
        return _forward(self, *args, **kwargs)
