"""A ``MessagePassing`` to inherit from, whose subclasses are accelerated without ``enable()``."""

from __future__ import annotations

from typing import Any

import torch_geometric.nn

from gnn_backend.adapters.pyg import propagation
from gnn_backend.dispatch import Dispatcher
from gnn_backend.patching import STOCK

_dispatcher = Dispatcher(
    "pyg.MessagePassing",
    propagation.eligible,
    propagation.fast,
    saves=propagation.edgewise_bytes,
    static=propagation.static_reason,
)


class MessagePassing(torch_geometric.nn.MessagePassing):
    """:class:`torch_geometric.nn.MessagePassing`, accelerated without ``enable()``.

    A subclass runs fused where its message is the source's features, ``x_j``, or these times a
    weight of the edge, and its aggregation is one that PyG names, or a list of them; whatever else
    it overrides, and inside a ``disabled()`` block, it runs PyG's own code. Messages are known by
    their source: see :func:`gnn_backend.adapters.pyg.messages.form_of`.
    """

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Let PyG write ``propagate`` for the class, and dispatch what it wrote."""
        super()._set_jittable_templates(raise_on_error)
        cls: Any = type(self)
        written = vars(cls).get("propagate")
        mine = f"{cls.__module__}_{cls.__name__}"
        if getattr(written, "__module__", "").startswith(mine) and not hasattr(written, STOCK):
            cls.propagate = cls._jinja_propagate = _dispatcher(written, "auto")
