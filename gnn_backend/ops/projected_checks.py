"""What projected attention refuses, lest a kernel misread it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.ops.attention_forms import Form
from gnn_backend.ops.heads import Heads


class Given(NamedTuple):
    """Tensors of a call, beside parameters and the projections' biases."""

    h_src: Tensor
    h_dst: Tensor | None
    w_src: Tensor | None
    w_dst: Tensor | None
    residual: Tensor | None
    bias: Tensor | None

    def reference(self, params: tuple[Tensor, ...]) -> Tensor:
        """The tensor whose dtype and device all others must have."""
        if params:
            return params[0]
        return self.h_src if self.w_src is None else self.w_src


def check_inputs(
    graph: Graph,
    form: Form,
    params: tuple[Tensor, ...],
    num_heads: int,
    heads: Heads,
    given: Given,
) -> None:
    """Refuse what would be misread; torch itself refuses weights that do not fit the features.

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices do not fit each other or the graph.
    """
    like = given.reference(params)
    width = (given.h_src.shape[1:] if given.w_src is None else given.w_src.shape[:1]).numel()
    if num_heads < 1 or width % num_heads:
        raise invalid("num_heads", "does not divide the features", num_heads, f"a part of {width}")
    dim = width // num_heads
    if len(params) != form.params:
        raise invalid("params", "wrong number", len(params), form.params)
    shapes = form.param_shapes(num_heads, dim)
    for param in params:
        if tuple(param.shape) not in shapes:
            expected = " or ".join(map(str, shapes))
            raise invalid("att", "wrong shape", tuple(param.shape), expected)
        if param.dtype is not like.dtype:
            raise invalid("att", "mixed dtypes", param.dtype, f"{like.dtype}")
    _check_rows(graph, given)
    if given.w_dst is not None and given.w_dst.shape[0] != width:
        raise invalid("w_dst", "wrong shape", tuple(given.w_dst.shape), f"[{width}, features]")
    if like.device != graph.device:
        raise invalid("att", "not on the graph's device", like.device, graph.device)
    columns = (dim,) if heads == "mean" else (width,) if heads == "concat" else (num_heads, dim)
    _check_added("bias", given.bias, columns, like)
    _check_added("residual", given.residual, (graph.num_dst, *columns), like)


def _check_rows(graph: Graph, given: Given) -> None:
    if given.w_dst is None and given.h_dst is not None:
        raise invalid("h_dst", "given without a projection", "dst=None", "both or neither")
    if given.w_src is None and given.w_dst is not None:
        raise invalid("src", "missing beside dst", None, "a projection of each end, or of neither")
    rows, own = graph.num_dst, given.h_src.shape[0]
    if own != graph.num_src:
        raise invalid("h_src", "wrong number of rows", own, graph.num_src)
    if given.h_dst is not None:
        own = given.h_dst.shape[0]
    if own != rows and (given.h_dst is not None or own < rows):
        raise invalid("h_dst", "wrong number of rows", own, rows)


def _check_added(name: str, added: Tensor | None, shape: tuple[int, ...], like: Tensor) -> None:
    if added is not None and added.shape != shape:
        raise invalid(name, "wrong shape", tuple(added.shape), shape)
    if added is not None and added.dtype is not like.dtype:
        raise invalid(name, "mixed dtypes", added.dtype, f"{like.dtype}, as att")


def check_projected(x_src: Tensor, x_dst: Tensor, params: tuple[Tensor, ...]) -> None:
    """Refuse what the kernels would misread; autocast decides the dtype of a projection as well.

    Raises
    ------
    InvalidArgument
        A table in another dtype or on another device than the parameters.
    """
    like = params[0] if params else x_src
    for name, table in (("h_src", x_src), ("h_dst", x_dst)):
        if table.dtype is not like.dtype:
            raise invalid(
                name, "mixed dtypes", f"projected to {table.dtype}", f"{like.dtype}, as att"
            )
        if table.device != like.device:
            raise invalid(name, "mixed devices", table.device, f"{like.device}, as att")
