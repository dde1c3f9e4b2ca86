"""The part of the kernels' arguments that says what edges bring (``EdgeArgs``)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from gnn_backend.runtime.options import LOGIT_TERMS, Options
from gnn_backend.runtime.plan import Side

if TYPE_CHECKING:
    from gnn_backend.runtime.random import Dropout

EDGE_ARGS = struct.Struct("<16q2QqIf")  # EdgeArgs in kernels/edge_terms.cuh
#: Its fields, and what they are where nothing is given.
_FIELDS: dict[str, float] = dict.fromkeys(
    ("ids", "wide_ids", "logit", "rows", "grad_weights", "grad_logit", "grad_rows", "weights",
     "pairs", "row_sums", "features", "query", "out", "grad_out", "grad_query", "partial", "seed",
     "offset", "drawn", "drop_below"), 0,
) | {"keep_scale": 1.0}  # fmt: skip
NO_EDGES = EDGE_ARGS.pack(*_FIELDS.values())


class EdgeTerms:
    """Edge operands of one call; packs them for a pass.

    Parameters
    ----------
    options : Options
    operands : mapping of str to Tensor
    dropout : Dropout, optional
    """

    def __init__(
        self, options: Options, operands: Mapping[str, Tensor], dropout: Dropout | None
    ) -> None:
        self.fields = fields = dict(_FIELDS)
        for name in LOGIT_TERMS:
            if name in operands:
                fields["logit"] = operands[name].data_ptr()
        if options.rows:
            fields["rows"] = operands["edge"].data_ptr()
        if options.features:
            fields["rows"] = operands["edge_features"].data_ptr()
            fields["features"] = options.features
            if options.query:
                fields["query"] = operands["edge_query"].data_ptr()
        if dropout is not None:
            fields["seed"] = dropout.seed
            fields["offset"] = dropout.offset
            if dropout.drawn is not None:
                fields["drawn"] = dropout.drawn.data_ptr()
            fields["drop_below"] = dropout.smallest_kept
            fields["keep_scale"] = dropout.scale

    def set(self, **tables: Tensor | None) -> None:
        """Give further tables by the names of their fields; None: as it was."""
        for name, table in tables.items():
            if table is not None:
                self.fields[name] = table.data_ptr()

    def pack(self, side: Side, partial: int = 0) -> bytes:
        """The arguments of a pass over ``side``."""
        fields = self.fields
        fields["ids"], fields["wide_ids"], fields["partial"] = side.edge_ids, side.wide_ids, partial
        return EDGE_ARGS.pack(*fields.values())
