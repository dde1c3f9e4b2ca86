"""Rows or tiles: which of two ways a pass of dot-product attention takes.

Rows are the traversal of :mod:`gnn_backend.runtime.device`, tiles the tensor-core kernels of
:mod:`gnn_backend.runtime.block_sparse`. Each pass chooses by itself, as both save the same
log-sum-exp; with a term of the logits they do not, and all passes go the way of the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from gnn_backend.config import get_config
from gnn_backend.graph import Graph
from gnn_backend.graph.graph import Direction
from gnn_backend.runtime import block_choice, block_sparse
from gnn_backend.runtime.options import PLAIN, Options

if TYPE_CHECKING:
    from gnn_backend.ops.functors import Functor
    from gnn_backend.runtime.launch import Cotangents, Saved

_SHORT = {"q_dst": "q", "k_src": "k", "v_src": "v", "edge_bias": "edge_bias"}
_DIRECTIONS: dict[str, Direction] = {
    "q_dst": "dst", "k_src": "src", "v_src": "src", "edge_bias": "dst"
}  # fmt: skip
_BIASED = Options(logit=True)


def possible(functor: Functor, options: Options) -> bool:
    """Whether there are kernels over tiles for what edges bring to a call."""
    return functor.name == "dot" and options in (PLAIN, _BIASED)


def chosen(
    graph: Graph, direction: Direction, operands: Mapping[str, Tensor], backward: bool = False
) -> bool:
    """Whether a pass over the rows of ``direction`` takes tiles.

    With a term of the logits only where that is asked for: the table that its values are spread
    to costs more than the tensor cores save.
    """
    path = get_config().attention_path
    if path == "rows":
        return False
    query = operands["q_dst"]
    form = query.dtype, query.shape[1], query.shape[2]
    if path == "tiles":
        return block_sparse.cannot(*form) is None and query.numel() > 0
    if "edge_bias" in operands:
        return False
    return block_choice.prefers_tiles(graph, direction, *form, backward)


def why(graph: Graph, operands: Mapping[str, Tensor]) -> str:
    """Why a forward pass takes what it takes, for people."""
    path = get_config().attention_path
    query = operands["q_dst"]
    form = query.dtype, query.shape[1], query.shape[2]
    if (reason := block_sparse.cannot(*form)) is not None:
        return reason
    if path != "auto":
        return f"attention_path is {path!r}"
    if "edge_bias" in operands:
        return "edges have a bias"
    if graph.num_edges < block_choice.MIN_EDGES:
        return f"fewer than {block_choice.MIN_EDGES:,} edges"
    stats = graph.block_stats("dst")
    faster = block_choice.predicted_speedup(stats, *form)
    return f"{stats.edges_per_tile:.0f} edges in a tile, predicted {faster:.1f} times as fast"


def forward(
    graph: Graph, operands: Mapping[str, Tensor], scalars: Mapping[str, float]
) -> tuple[Tensor, Tensor, None]:
    """Output, log-sum-exp and no sum of edge features."""
    query, key, value = (operands[name] for name in ("q_dst", "k_src", "v_src"))
    bias = operands.get("edge_bias")
    return *block_sparse.forward(graph, query, key, value, scalars["scale"], bias), None


def backward(
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    saved: Saved,
    cotangents: Cotangents,
    needs: frozenset[str],
) -> dict[str, Tensor]:
    """Gradients of those passes that take tiles; the others' names are missing."""
    bias = operands.get("edge_bias")
    if bias is not None:
        tiled = saved.lse.dim() == 2
        take = {"dst": tiled, "src": tiled}
    else:
        take = {d: chosen(graph, d, operands, True) for d in set(_DIRECTIONS.values())}
    mine = {name for name in needs if take[_DIRECTIONS[name]]}
    if not mine:
        return {}
    query, key, value = (operands[name] for name in ("q_dst", "k_src", "v_src"))
    found = block_sparse.backward(
        graph, query, key, value, scalars["scale"], saved.out, saved.lse, cotangents.out,
        frozenset(_SHORT[name] for name in mine), bias,
    )  # fmt: skip
    return {name: getattr(found, _SHORT[name]) for name in mine}
