"""The CPU engine: softmax-weighted traversals in Numba, forward and two-pass backward.

Nothing edge-wise is stored unless it is asked for. 16-bit operands are widened to float32 at entry
and results are rounded once; float32 and float64 are computed as they are. Results are the same
bit for bit on every run and with every number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.profile import note_choice
from gnn_backend.runtime.cpu_call import Call
from gnn_backend.runtime.pages import fresh_like

if TYPE_CHECKING:
    from gnn_backend.graph import Graph
    from gnn_backend.ops.functors import Functor
    from gnn_backend.runtime.launch import Cotangents, Saved
    from gnn_backend.runtime.random import Dropout


def softmax_forward(
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    dropout: Dropout | None = None,
    *,
    aggregate: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Softmax-weighted sum over the in-edges of every destination.

    Parameters
    ----------
    functor : Functor
        What an edge computes; its Numba source is ``numba_templates/<name>.py``.
    graph : Graph
    operands : mapping of str to Tensor
        Node tables, parameters and edge tensors (in the caller's order), of one floating dtype.
    scalars : mapping of str to float
    dropout : Dropout, optional
        Of the weights.
    aggregate : bool
        Also sum the ``edge_features`` [E, F] or [E, H, F].

    Returns
    -------
    out : Tensor [num_dst, H, D]
        In the operands' dtype; rows without in-edges are 0.
    lse : Tensor [num_dst, H]
        Log-sum-exp of each row's logits (-inf for rows without in-edges), float32, or float64
        for float64 operands.
    out_edge : Tensor [num_dst, H, F] or None

    Raises
    ------
    InvalidArgument
        The operands' dtypes differ, or there are no features to sum.
    KernelCompileError
        The kernel does not compile, or there is no folder to write it to.
    """
    call = Call(functor, graph, operands, scalars, dropout)
    rows, out_edge = graph.num_dst, None
    out, lse = call.empty(rows, call.heads, call.width), call.empty(rows, call.heads)
    more: dict[str, Tensor] = {}
    if aggregate:
        if "edge_features" not in operands:
            raise invalid("edge_features", "missing", None, "what aggregate=True sums")
        out_edge = call.empty(rows, call.heads, call.feature_width)
        more = {"out_edge": out_edge, "slot_edge": call.slots(call.features)}
    if graph.num_edges == 0 or out.numel() == 0:
        lse.fill_(-torch.inf)
        out.zero_()
        if out_edge is not None:
            out_edge.zero_()
    else:
        note_choice(lambda: f"{functor.name}: Numba, {call.blocks} blocks of edges")
        more |= {"slot_sums": call.slots(call.outputs), "slot_more": call.slots(2 * call.heads)}
        call.launch("forward", graph.ordered_rows("dst"), rows, out=out, lse=lse, **more)
    return out.to(call.dtype), lse, None if out_edge is None else out_edge.to(call.dtype)


def softmax_weights(
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    lse: Tensor,
    dropout: Dropout | None = None,
) -> Tensor:
    """The weights that ``softmax_forward`` sums with, after dropout.

    Parameters
    ----------
    functor, graph, operands, scalars, dropout
        As in the forward.
    lse : Tensor [num_dst, H]
        What the forward returned.

    Returns
    -------
    Tensor [E, H]
        In the caller's edge order and the operands' dtype.

    Raises
    ------
    InvalidArgument
        The operands' dtypes differ.
    KernelCompileError
        The kernel does not compile, or there is no folder to write it to.
    """
    return _weights(Call(functor, graph, operands, scalars, dropout), lse).to(
        next(iter(operands.values())).dtype
    )


def _weights(call: Call, lse: Tensor) -> Tensor:
    graph = call.graph
    attention = call.empty(graph.num_edges, call.heads)
    if attention.numel():
        call.launch(
            "weights", graph.ordered_rows("dst"), graph.num_dst,
            lse=call.dense(lse), attention=attention,
        )  # fmt: skip
    return attention


def softmax_backward(
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    saved: Saved,
    cotangents: Cotangents,
    needs: frozenset[str],
    dropout: Dropout | None = None,
) -> dict[str, Tensor]:
    """Gradients of ``softmax_forward`` towards the operands named in ``needs``.

    Parameters
    ----------
    functor, graph, operands, scalars, dropout
        As in the forward.
    saved : Saved
        What the forward returned.
    cotangents : Cotangents
        Of the outputs, and of what ``softmax_weights`` returned.
    needs : frozenset of str
        Operand names; no work is done for the others.

    Returns
    -------
    dict of str to Tensor
        A gradient in the shape and dtype of each operand in ``needs``.

    Raises
    ------
    InvalidArgument
        An unknown name in ``needs``, or operands of different dtypes.
    KernelCompileError
        A kernel does not compile, or there is no folder to write it to.
    """
    unknown = needs - set(operands)
    if unknown:
        raise invalid("needs", "unknown operands", sorted(unknown), f"names of {sorted(operands)}")
    if graph.num_edges == 0 or saved.out.numel() == 0 or not needs:
        return {name: torch.zeros_like(operands[name]) for name in sorted(needs)}
    call = Call(functor, graph, operands, scalars, dropout)
    wanted = {role: name for role, name in call.roles.items() if name in needs}
    _write_stats(call, saved, cotangents)
    found = _backward_dst(call, wanted)
    if wanted.keys() & {"key", "value", "key_term"}:
        found |= _backward_src(call, wanted)
    return {
        name: found[role].view(operands[name].shape).to(operands[name].dtype)
        if role in found
        else torch.zeros_like(operands[name])
        for role, name in wanted.items()
    }


def _write_stats(call: Call, saved: Saved, cotangents: Cotangents) -> None:
    """Take in what the forward left and the cotangents, and write each row's statistics."""
    given = {
        "out": saved.out,
        "lse": saved.lse,
        "grad_out": cotangents.out,
        "grad_out_edge": cotangents.out_edge,
        "out_edge": None if cotangents.out_edge is None else saved.out_edge,
        "grad_attention": cotangents.attention,
    }
    call.tensors |= {name: call.dense(t) for name, t in given.items() if t is not None}
    rows = call.graph.num_dst
    call.tensors["stats"] = call.empty(rows, call.heads, 2)
    more = {} if cotangents.attention is None else {"attention": _weights(call, saved.lse)}
    call.launch("stats", call.graph.by_dst, rows, **more)


#: Gradients of the pass by destination: of what, and the size of its rows, as in ``Call``.
_BY_EDGE = ("edge", "edge_bias", "edge_features")


def _backward_dst(call: Call, wanted: Mapping[str, str]) -> dict[str, Tensor]:
    rows = call.graph.num_dst
    targets = {
        f"grad_{role}": fresh_like(call.tensors[role])
        for role in ("query", "edge_query", "query_term", *_BY_EDGE)
        if role in wanted
    }
    if "param" in wanted:
        targets["grad_param"] = call.empty(call.blocks, call.keys)
    if not targets:
        return {}
    slots = {"slot_sums": call.slots(call.keys), "slot_edge": call.slots(call.features)}
    if "query_term" in wanted:
        slots["slot_term"] = call.slots(call.heads)
    call.launch("backward_dst", call.graph.ordered_rows("dst"), rows, **targets, **slots)
    gradients = {name.removeprefix("grad_"): target for name, target in targets.items()}
    if "param" in wanted:
        gradients["param"] = gradients["param"][0].clone()
    return gradients


def _backward_src(call: Call, wanted: Mapping[str, str]) -> dict[str, Tensor]:
    targets: dict[str, Tensor] = {}
    if "value" in wanted:
        targets["grad_value"] = fresh_like(call.tensors["value"])
        targets["slot_sums"] = call.slots(call.outputs)
    if call.module.VALUE_IS_KEY:
        targets["grad_key"] = call.empty(call.blocks, call.keys)  # a scratch row a block
    elif "key" in wanted:
        targets["grad_key"] = fresh_like(call.tensors["key"])
        targets["slot_more"] = call.slots(call.keys)
    if "key_term" in wanted:
        targets["grad_key_term"] = fresh_like(call.tensors["key_term"])
        targets["slot_term"] = call.slots(call.heads)
    call.launch("backward_src", call.graph.ordered_rows("src"), call.graph.num_src, **targets)
    found = {role: targets.get(f"grad_{role}") for role in ("value", "key", "key_term")}
    if call.module.VALUE_IS_KEY:
        found["key"] = found["value"]
    return {role: gradient for role, gradient in found.items() if gradient is not None}
