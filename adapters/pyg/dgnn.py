"""Making PyG's ``FusedGATConv`` where the package dgNN is not installed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def without_dgnn(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``FusedGATConv.__init__``, whose last step imports dgNN's operator, to take ours."""

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "dgNN":
                raise
            from gnn_backend.adapters.pyg.fused_gat import attention_of_rows

            self.op = attention_of_rows

    return __init__
