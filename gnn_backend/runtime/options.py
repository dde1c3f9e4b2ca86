"""What edges bring to an attention call besides their two ends, and so what a unit is compiled for.

``Options`` of kernels/edge_terms.cuh: a feature that a call does not use costs its kernels nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from gnn_backend.ops.functors import Functor
    from gnn_backend.runtime.random import Dropout

LOGIT_TERMS = ("edge_logit", "edge_bias")  # operands [E, H] that enter a logit
_FLAGS = {"logit": "l", "dropout": "d", "rows": "r", "cotangent": "c", "weights": "w"}
_FEATURE_FLAGS = {"shared": "s", "query": "q", "aggregate": "a"}


class Options(NamedTuple):
    """Features of a unit.

    Attributes
    ----------
    logit : bool
        A term of the logit for each edge and head.
    dropout : bool
    rows : bool
        A row of the operands' shape for each edge.
    cotangent : bool
        The returned weights have a gradient.
    weights : bool
        The weights are written.
    features : int
        Width F of the edge features that are used, or 0.
    shared : bool
        Features are [E, F], not [E, H, F].
    query, aggregate : bool
        Features enter the logit; their weighted sum is a result.
    """

    logit: bool = False
    dropout: bool = False
    rows: bool = False
    cotangent: bool = False
    weights: bool = False
    features: int = 0
    shared: bool = False
    query: bool = False
    aggregate: bool = False

    @property
    def numbered(self) -> bool:
        """Whether the numbers of the edges are needed."""
        return self != PLAIN

    @property
    def name(self) -> str:
        """The flags as letters, for names of units."""
        flags = "".join(letter for flag, letter in _FLAGS.items() if getattr(self, flag))
        if self.features:
            flags += "f"
            flags += "".join(c for flag, c in _FEATURE_FLAGS.items() if getattr(self, flag))
        return flags

    def source(self, fragment: str) -> str:
        """C++ text of the struct ``Options``; ``fragment``: lane layout of the features."""
        lines = [f"static constexpr bool {f.upper()} = true;" for f in _FLAGS if getattr(self, f)]
        if self.features:
            flags = (str(getattr(self, flag)).lower() for flag in _FEATURE_FLAGS)
            lines.append(f"using EdgeFeatures = gnnb::Features<{fragment}, {', '.join(flags)}>;")
        return f"struct Options : gnnb::Plain {{ {' '.join(lines)} }};\n"


PLAIN = Options()


def options_of(
    functor: Functor,
    operands: Mapping[str, Tensor],
    dropout: Dropout | None,
    *,
    aggregate: bool = False,
    cotangent: bool = False,
    weights: bool = False,
) -> Options:
    """The options of a call."""
    required = len(functor.src) + len(functor.dst) + len(functor.params)
    if len(operands) == required and dropout is None and not (aggregate or cotangent or weights):
        return PLAIN
    query = "edge_query" in operands
    features = operands.get("edge_features") if query or aggregate else None
    return Options(
        logit=any(name in operands for name in LOGIT_TERMS),
        dropout=dropout is not None,
        rows="edge" in operands,
        cotangent=cotangent,
        weights=weights,
        features=0 if features is None else features.shape[-1],
        shared=features is not None and features.dim() == 2,
        query=query,
        aggregate=aggregate,
    )
