"""The CPU engine of aggregations: several reductions in one pass over the neighbours, in Numba.

Nothing edge-wise is stored. 16-bit messages are widened to float32 at entry; float32 and float64
are computed as they are. Results are the same bit for bit on every run and with every number of
threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.profile import note_choice
from gnn_backend.runtime.aggregation import Forward, Message
from gnn_backend.runtime.cpu_aggregation_call import LINE, PARTS, AggregateCall

if TYPE_CHECKING:
    from gnn_backend.graph import Graph

PRIMITIVES = ("sum", "square", "max", "min", "mul", "softmax")
_EXTREMES = ("max", "min")
_WINNER_ROWS = 64  # blocks of destination rows


def aggregate_forward(
    graph: Graph,
    message: Message,
    wanted: tuple[str, ...],
    *,
    first: bool,
    nan_wins: bool,
    temperature: Tensor | float | None,
    save: bool,
) -> Forward:
    """Reductions of the messages of every destination's in-edges.

    Parameters
    ----------
    graph : Graph
    message : Message
    wanted : tuple of str
        Of ``PRIMITIVES``.
    first : bool
        Gradients of max and min go to the first winner of a row, else to all ties evenly.
    nan_wins : bool
        A NaN is the maximum and the minimum, as for torch; else nothing wins that is NaN or not
        above -inf (below inf), as for DGL: such rows give 0.
    temperature : float or Tensor of one or of H * D values, optional
        Of ``softmax``; None means 1.
    save : bool
        Keep what the backward needs.

    Returns
    -------
    Forward
        Rows without edges are 0, of ``mul`` 1. Ties are counted as torch's ``scatter_reduce``
        does on zeros: a maximum of 0 has one more.

    Raises
    ------
    InvalidArgument
        An unknown primitive or kind of message.
    KernelCompileError
        The kernel does not compile, or there is no folder to write it to.
    """
    unknown = set(wanted) - set(PRIMITIVES)
    if unknown:
        raise invalid("wanted", "unknown primitives", sorted(unknown), f"of {PRIMITIVES}")
    call = AggregateCall(graph, message, _given(wanted, temperature))
    rows = graph.num_dst
    shape = rows, *call.shape
    values = {name: call.empty(*shape) for name in dict.fromkeys(wanted)}
    saved = _to_save(call, wanted, shape, first) if save else {}
    if rows * call.features:
        blocks = call.blocks(rows, PARTS)
        note_choice(lambda: f"{', '.join(values)}: Numba, {blocks} blocks of edges")
        where = "aggregate_forward", graph.ordered_rows("dst"), rows, blocks
        call.launch(*where, values | saved, nan_wins=nan_wins, parts=PARTS)
    for name in _EXTREMES:
        if name in values:
            values[name] = values[name].to(message.x.dtype)
    return Forward(values, saved)


def _given(wanted: object, temperature: Tensor | float | None) -> Tensor | float | None:
    """The temperature, where there is a softmax."""
    if "softmax" not in wanted:  # type: ignore[operator]
        return None
    return 1.0 if temperature is None else temperature


def _to_save(
    call: AggregateCall, wanted: tuple[str, ...], shape: tuple[int, ...], first: bool
) -> dict[str, Tensor]:
    saved = {}
    for name in _EXTREMES:
        if name in wanted and first:
            saved[f"{name}_first"] = torch.empty(shape, dtype=call.position)
        elif name in wanted:
            saved[f"{name}_ties"] = call.empty(*shape)
    if "mul" in wanted:
        saved["mul_rest"] = call.empty(*shape)
    if "softmax" in wanted:
        saved["softmax_lse"] = call.empty(*shape)
    return saved


def aggregate_backward(
    graph: Graph,
    message: Message,
    forward: Forward,
    grads: dict[str, Tensor],
    *,
    first: bool,
    nan_wins: bool,
    temperature: Tensor | float | None,
    needs_x: bool,
    needs_edge: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of ``aggregate_forward``.

    Parameters
    ----------
    graph, message, first, nan_wins, temperature
        As in the forward, which was asked to ``save``.
    forward : Forward
        What it returned.
    grads : dict of str to Tensor [num_dst, H, D]
        Towards the primitives' values.
    needs_x, needs_edge : bool
        No work is done for the others.

    Returns
    -------
    grad_x, grad_edge : Tensor or None
        In the shape and dtype of ``message.x`` and ``message.edge``.
    grad_temperature : Tensor or None
        In the shape and dtype of ``temperature``, where that is a tensor.

    Raises
    ------
    InvalidArgument
        An unknown kind of message.
    KernelCompileError
        The kernel does not compile, or there is no folder to write it to.
    """
    call = AggregateCall(graph, message, _given(grads, temperature))
    needs_edge = needs_edge and message.edge is not None
    needs_temperature = isinstance(temperature, Tensor)
    winners = {name for name in _EXTREMES if name in grads and first}
    gathered = {name: grad for name, grad in grads.items() if name not in winners}
    targets: dict[str, Tensor] = {}
    fresh = torch.empty_like if gathered else torch.zeros_like  # every element is written, or none
    if needs_x:
        targets["grad_x"] = fresh(call.tensors["x"])
    if needs_edge:
        targets[f"grad_{call.edge_name}"] = fresh(call.tensors[str(call.edge_name)])
    grad_temperature = torch.zeros(call.shape, dtype=call.real) if needs_temperature else None
    if graph.num_edges * call.features == 0:
        for target in targets.values():
            target.zero_()
    else:
        if gathered:
            shares = _per_tie(gathered, forward, nan_wins)
            through_softmax = _gather(call, forward, shares, targets, needs_temperature)
            if through_softmax is not None:
                grad_temperature = through_softmax
        if winners:
            _add_winners(call, forward, {name: grads[name] for name in sorted(winners)}, targets)
    found = {name.removeprefix("grad_"): grad for name, grad in targets.items()}
    return (
        found["x"].to(message.x.dtype) if needs_x else None,
        _like(found[str(call.edge_name)], message.edge) if needs_edge else None,
        _like(grad_temperature, temperature),
    )


def _like(gradient: Tensor | None, operand: Tensor | float | None) -> Tensor | None:
    if gradient is None or not isinstance(operand, Tensor):
        return None
    if operand.numel() == 1:
        gradient = gradient.sum()
    return gradient.reshape(operand.shape).to(operand.dtype)


def _gather(
    call: AggregateCall,
    forward: Forward,
    grads: dict[str, Tensor],
    targets: dict[str, Tensor],
    needs_temperature: bool,
) -> Tensor | None:
    """Write the gradients that go to every edge, or to all ties; return temperature's [H, D]."""
    graph = call.graph
    tables: dict[str, Tensor] = {}
    for name, grad in grads.items():
        tables[f"grad_{name}"] = call.dense(grad)
        if name not in ("sum", "square"):
            tables[name] = call.dense(forward.values[name])
        for saved in ("mul_rest", "softmax_lse"):
            if saved.startswith(name):
                tables[saved] = forward.saved[saved]
    blocks = call.blocks(graph.num_src, 1)
    targets = dict(targets)
    if needs_temperature and "softmax" in grads:
        targets["grad_temperature"] = call.empty(blocks, *call.shape)
    if not targets:
        return None
    where = "aggregate_backward", graph.ordered_rows("src"), graph.num_src, blocks
    call.launch(*where, tables | targets, parts=1)
    found = targets.get("grad_temperature")
    return None if found is None else found[0]


def _per_tie(grads: dict[str, Tensor], forward: Forward, nan_wins: bool) -> dict[str, Tensor]:
    """The gradients of max and min divided by the number of ties."""
    divided = dict(grads)
    for name in _EXTREMES:
        if name in grads:
            ties = forward.saved[f"{name}_ties"]
            share = grads[name] / ties
            # Without ties NaN has won, which makes torch's gradients NaN; or nothing has.
            divided[name] = share if nan_wins else share.masked_fill(ties == 0, 0.0)
    return divided


def _add_winners(
    call: AggregateCall, forward: Forward, grads: dict[str, Tensor], targets: dict[str, Tensor]
) -> None:
    """Add the gradients that go to the first winner of a row and channel."""
    graph = call.graph
    tables = {f"grad_{name}": call.dense(grad) for name, grad in grads.items()}
    tables |= {f"{name}_first": forward.saved[f"{name}_first"] for name in grads}
    where = graph.ordered_rows("dst"), graph.num_dst  # in which the forward counted places
    x = {name: grad for name, grad in targets.items() if name == "grad_x"}
    edge = {name: grad for name, grad in targets.items() if name != "grad_x"}
    if x:  # each number has one owner, so that any count of blocks gives the same
        blocks = min(-(-call.features // LINE), torch.get_num_threads())
        call.launch("winners_to_sources", *where, blocks, tables | x)
    if edge:
        blocks = min(graph.num_dst, _WINNER_ROWS)
        call.launch("winners_to_edges", *where, blocks, tables | edge)
