"""The graph transformer that DGL's users write with ``u_dot_v``, ``edge_softmax``, ``u_mul_e_sum``.

Its first two calls put their work off (:mod:`gnn_backend.adapters.dgl.pending`), its third runs
:func:`gnn_backend.ops.attention.dot_attention`. On graphs in memory and on resident ones alike.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.dgl import pending
from gnn_backend.adapters.dgl.graph import entry, graph_of, unsupported_reason
from gnn_backend.adapters.dgl.pending import PendingEdges, Recipe, settled
from gnn_backend.config import get_config
from gnn_backend.dispatch import Dispatcher, active_mode, bypassed
from gnn_backend.errors import Unsupported
from gnn_backend.ops.attention import dot_attention
from gnn_backend.runtime.launch import engine_for
from gnn_backend.runtime.selection import MAX_HEAD_DIM

SYMBOL = "dgl.attention_pattern"
_TARGETS = {"u": "u", "v": "v", "src": "u", "dst": "v", 0: "u", 2: "v"}


class Structure:
    """A graph as ``dgl.ops`` reads one: its structure now, without its features.

    What is put off must neither see a later edit of the graph nor keep its features alive.
    """

    __slots__ = ("_graph",)

    def __init__(self, graph: Any) -> None:
        self._graph = graph._graph


def put_off_scores(
    g: Any, op: str, lhs: Any, rhs: Any, lhs_target: Any, rhs_target: Any, compute: Any
) -> Tensor | None:
    """What ``dgl.ops.gsddmm`` gives where attention may follow, else None.

    ``compute(key, query)`` is the stock call, with the source's features first.
    """
    if op != "dot" or bypassed() or active_mode(SYMBOL) is None or torch.compiler.is_compiling():
        return None
    ends = _TARGETS.get(lhs_target), _TARGETS.get(rhs_target)
    if sorted(end or "" for end in ends) != ["u", "v"]:
        return None
    key, query = (lhs, rhs) if ends[0] == "u" else (rhs, lhs)
    if not _fit(g, key, query):
        return None
    index = g._graph

    def gradients(
        key: Tensor, query: Tensor, grad: Tensor, needed: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        from dgl import backend

        def gathered(index: Any, table: Tensor) -> Tensor:
            return backend.gspmm(index, "mul", "sum", table, grad)  # type: ignore[no-any-return]

        return (
            gathered(index.reverse(), query) if needed[0] else None,
            gathered(index, key) if needed[1] else None,
        )

    return pending.scores(entry(index), int(g.num_edges()), key, query, compute, gradients)


def _fit(g: Any, key: Any, query: Any) -> bool:
    """Whether fused attention takes these features; what it refuses is not put off."""
    for table in (key, query):
        if not isinstance(table, Tensor) or isinstance(table, PendingEdges):
            return False
        if table.is_inference():  # nothing would tell of a change in place
            return False
    same = key.dtype is query.dtype and key.shape[1:] == query.shape[1:]
    if not same or key.dim() not in (2, 3) or not 1 <= key.shape[-1] <= MAX_HEAD_DIM:
        return False
    if torch.is_autocast_enabled(key.device.type) or unsupported_reason(g) is not None:
        return False
    if key.device != g.device or query.device != g.device:
        return False
    if (len(key), len(query)) != (g.num_src_nodes(), g.num_dst_nodes()):
        return False
    if g.num_edges() < max(1, get_config().min_edges):
        return False
    try:
        engine_for(key.device, key.dtype)
    except Unsupported:
        return False
    return True


def edge_softmax(
    stock: Any, graph: Any, logits: Any, eids: Any = "__ALL__", norm_by: str = "dst"
) -> Any:
    """``dgl.ops.edge_softmax``."""
    if isinstance(logits, dict):
        logits = {relation: settled(scores) for relation, scores in logits.items()}
    if not isinstance(logits, PendingEdges):
        return stock(graph, logits, eids, norm_by)
    if norm_by == "dst" and isinstance(eids, str):
        structure = Structure(graph)
        found = pending.weights(
            entry(graph._graph), logits, lambda scores: stock(structure, scores)
        )
        if found is not None:
            return found
    return stock(graph, settled(logits), eids, norm_by)


def attention(g: Any, op: str, reduce_op: str, value: Any, factor: Any) -> Tensor | None:
    """What ``dgl.ops.gspmm`` gives where its factor is put-off attention, else None."""
    if op != "mul" or reduce_op != "sum" or not isinstance(factor, PendingEdges):
        return None
    recipe = pending.attention_of(entry(g._graph), value, factor)
    return None if recipe is None else _attend(g, value, recipe)


def _fused(g: Any, value: Tensor, recipe: Recipe) -> Tensor:
    query, key = recipe.query, recipe.key
    whole = value.dim() == 3
    if not whole:
        query, key, value = (t.unsqueeze(1) for t in (query, key, value))
    out: Tensor = dot_attention(graph_of(g), query, key, value, scale=recipe.scale)
    return out if whole else out.squeeze(1)


def _in_three_calls(g: Any, value: Tensor, recipe: Recipe) -> Tensor:
    import dgl

    scores = recipe.dots(recipe.key, recipe.query) * recipe.scale
    assert recipe.softmax is not None  # the recipe is one of weights
    return dgl.ops.u_mul_e_sum(g, value, recipe.softmax(scores))  # type: ignore[no-any-return]


def _eligible(g: Any, value: Tensor, recipe: Recipe) -> str | None:
    """No reason against it: what has one was not put off."""
    return None


def _saved_bytes(g: Any, value: Tensor, recipe: Recipe) -> int:
    """Scores, weights, and their gradients."""
    heads = value.shape[1] if value.dim() == 3 else 1
    return 4 * int(g.num_edges()) * heads * value.element_size()


_attend = Dispatcher(SYMBOL, _eligible, _fused, saves=_saved_bytes)(_in_three_calls)
