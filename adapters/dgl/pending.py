"""Attention that DGL's users write in three calls, run as one operator.

The graph transformer of many scripts is::

    scores = u_dot_v(g, key, query)                 # or apply_edges(fn.u_dot_v(...))
    weights = edge_softmax(g, scores / sqrt(dim))
    out = u_mul_e_sum(g, value, weights)            # or update_all(fn.u_mul_e(...), fn.sum(...))

Each of the first two stores a number an edge and head that only the next one reads. Here they give
a :class:`PendingEdges` instead: a tensor of the right shape that remembers how its values come
about. The third call sees the whole and runs fused attention. Whatever else is done with such a
tensor (printed, clamped, put through another function) computes the values first, as the stock
code would have; gradients are right either way, since to autograd it is an ordinary tensor.
Where somebody waits for the gradient of scores or weights (a hook, ``retain_grad()``, a leaf of
their own), the calls run one by one. A wish that comes after the third call is too late: the
scores have no part in its result any more, and ``torch.autograd.grad`` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from gnn_backend.errors import GNNBackendError

Compute = Callable[..., Tensor]

_aten = torch.ops.aten
_refuse_address = getattr(torch._C, "_set_throw_on_mutable_data_ptr", None)
_SCALES = {_aten.mul.Tensor, _aten.mul.Scalar, _aten.div.Tensor, _aten.div.Scalar}
#: What reads a tensor's memory without asking the dispatcher.
_READS = frozenset(
    getattr(Tensor, name)
    for name in (
        "numpy", "tolist", "item", "data_ptr", "untyped_storage", "storage", "share_memory_",
        "__array__", "__dlpack__", "__reduce_ex__", "__deepcopy__",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """How the values of a pending tensor come about.

    Attributes
    ----------
    graph : object
        What stands for the graph that they belong to.
    key, query : Tensor [num_src, H, D], [num_dst, H, D] or [num_src, D], [num_dst, D]
        With their place in autograd's graph.
    dots, softmax : callable
        ``dots(key, query)`` gives the scores, ``softmax(scores)`` the weights.
    scale : float
        Factor of the scores.
    weights : bool
        Whether the values are the weights, and not the scores.
    versions : (int or None, int or None)
        Of key and query, when the scores were asked for.
    steps : tuple of PendingEdges
        What the tensor came from, the scores first; without those behind a ``detach()``.
    """

    graph: Any
    key: Tensor
    query: Tensor
    dots: Compute
    softmax: Compute | None = None
    scale: float = 1.0
    weights: bool = False
    versions: tuple[int | None, int | None] = (0, 0)
    steps: tuple[PendingEdges, ...] = ()

    def values(self) -> Tensor:
        """Compute what was put off, outside of autograd.

        Raises
        ------
        GNNBackendError
            An operand has been changed in place since, so that the values are lost.
        """
        self.check()
        with torch.no_grad():
            found = self.dots(self.key.detach(), self.query.detach())
            if self.scale != 1.0:
                found = found * self.scale
            return self.softmax(found) if self.weights and self.softmax else found

    def stale(self) -> bool:
        """Whether an operand has been changed in place since."""
        return self.versions != (_version(self.key), _version(self.query))

    def check(self) -> None:
        """Refuse operands that have been changed in place."""
        if self.stale():
            raise GNNBackendError(
                "u_dot_v: a feature was changed in place after its dot products were asked for and "
                "before they were used, and fused attention had put them off; expected features "
                "that stay as they are. Change a copy, or call "
                'gnn_backend.enable(exclude="dgl.attention_pattern")'
            )


def _version(tensor: Tensor) -> int | None:
    """How often a tensor was changed in place; None for inference tensors, which do not count."""
    return None if tensor.is_inference() else tensor._version


class _Contents:
    """What a pending tensor shares with those that :meth:`Tensor.detach` made of it.

    Attributes
    ----------
    held : Tensor or None
        The values, once somebody asked for them.
    changed : bool
        Whether somebody may have changed them in place.
    """

    __slots__ = ("changed", "held")

    def __init__(self) -> None:
        self.held: Tensor | None = None
        self.changed = False


class PendingEdges(Tensor):
    """A tensor [E, H, 1] or [E, 1] whose values are computed when somebody asks for them."""

    _recipe: Recipe
    _contents: _Contents

    @staticmethod
    def __new__(
        cls, recipe: Recipe, shape: tuple[int, ...], contents: _Contents | None = None
    ) -> PendingEdges:
        made: PendingEdges = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, shape, dtype=recipe.key.dtype, device=recipe.key.device
        )
        if _refuse_address is not None:  # else what reads memory past torch reads address 0
            _refuse_address(made)
        made._recipe, made._contents = recipe, contents or _Contents()
        return made

    @property
    def recipe(self) -> Recipe | None:
        """How the values come about; None once somebody may have changed them in place."""
        return None if self._contents.changed else self._recipe

    @property
    def held(self) -> Tensor | None:
        """The values, if they have been computed."""
        return self._contents.held

    def values(self) -> Tensor:
        """The values, computed once; outside of autograd."""
        if self._contents.held is None:
            self._contents.held = self._recipe.values()
        return self._contents.held

    def change(self) -> None:
        """Note that the values may no longer be what the recipe says."""
        self._contents.changed = True

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func is Tensor.contiguous:  # what is handed to a library in C
                return _plain(*args).contiguous(*args[1:], **(kwargs or {}))
            if func in _READS:
                args = tree_map_only(PendingEdges, _readable, args)
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _SCALES and not kwargs:
            scaled = _scaled(func, *args)
            if scaled is not None:
                return scaled
        if func is _aten.detach.default and args[0].recipe is not None:
            tensor = args[0]
            return PendingEdges(
                replace(tensor.recipe, steps=()), tuple(tensor.shape), tensor._contents
            )
        met: dict[int, PendingEdges] = {}

        def plain(tensor: PendingEdges) -> Tensor:
            values = tensor.values()
            met[id(values)] = tensor
            return values

        result = func(*tree_map_only(PendingEdges, plain, args),
                      **tree_map_only(PendingEdges, plain, kwargs or {}))  # fmt: skip
        if all(out.alias_info is None for out in func._schema.returns):
            return result
        for tensor in met.values():  # changed in place, or by way of a view that was handed out
            tensor.change()
        return tree_map_only(Tensor, lambda t: met.get(id(t), t), result)


def _readable(tensor: PendingEdges) -> Tensor:
    """The values as they lie in memory, for as long as the tensor lives."""
    values = tensor.values()
    tensor.change()  # who has the address may write there
    return values.requires_grad_() if tensor.requires_grad else values


def _plain(tensor: PendingEdges, *options: Any) -> Tensor:
    """The values as an ordinary tensor: a copy in autograd's graph, else the very memory."""
    if tensor.requires_grad and torch.is_grad_enabled():
        return tensor.clone()
    values = tensor.values()
    tensor.change()
    return values


def _scaled(func: Any, tensor: Any, factor: Any) -> PendingEdges | None:
    """Scores times or over a number, still put off; None for anything else."""
    if not isinstance(tensor, PendingEdges) or not isinstance(factor, (int, float)):
        return None
    recipe = tensor.recipe
    if recipe is None or recipe.weights:
        return None
    over = func in (_aten.div.Tensor, _aten.div.Scalar)
    if over and factor == 0:
        return None
    scale = recipe.scale / factor if over else recipe.scale * factor
    if not math.isfinite(scale):
        return None
    recipe = replace(recipe, scale=scale, steps=(*recipe.steps, tensor))
    return PendingEdges(recipe, tuple(tensor.shape))


class _Scores(torch.autograd.Function):
    """Put-off scores in autograd's graph."""

    @staticmethod
    def forward(
        ctx: Any, recipe: Recipe, shape: tuple[int, ...], gradients: Compute, *inputs: Tensor
    ) -> Tensor:
        ctx.gradients = gradients
        ctx.save_for_backward(*inputs)
        return PendingEdges(recipe, shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        found = ctx.gradients(*ctx.saved_tensors, grad, ctx.needs_input_grad[3:])
        return None, None, None, *found


class _Weights(torch.autograd.Function):
    """Put-off weights in autograd's graph; backward computes them to have their gradient."""

    @staticmethod
    def forward(
        ctx: Any, recipe: Recipe, shape: tuple[int, ...], softmax: Compute, logits: Tensor
    ) -> Tensor:
        ctx.softmax = softmax
        ctx.save_for_backward(logits)
        return PendingEdges(recipe, shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (logits,) = ctx.saved_tensors
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            logits = settled(logits) if again else values_of(logits).detach().requires_grad_()
            out = ctx.softmax(logits)
        (found,) = torch.autograd.grad(out, logits, grad, create_graph=again)
        return None, None, None, found


def settled(tensor: Any) -> Any:
    """A plain tensor with the values of a pending one, and its place in autograd's graph."""
    return tensor.clone() if isinstance(tensor, PendingEdges) else tensor


def values_of(tensor: Any) -> Any:
    """The values of a pending tensor, without its place in autograd's graph."""
    return tensor.values() if isinstance(tensor, PendingEdges) else tensor


def scores(
    graph: Any, num_edges: int, key: Tensor, query: Tensor, dots: Compute,
    gradients: Callable[..., tuple[Tensor | None, Tensor | None]],
) -> Tensor:  # fmt: skip
    """Put off ``dots(key, query)``, the dot product of each edge's source and destination.

    Parameters
    ----------
    graph : object
        What stands for the graph: later calls are about the same one if it is the same object.
    num_edges : int
    key, query : Tensor [num_src, H, D], [num_dst, H, D], or without heads
    dots : callable
        Differentiable.
    gradients : callable
        ``gradients(key, query, grad, (of_key, of_query))``, those that are needed; differentiable.
    """
    recipe = Recipe(graph, key, query, dots, versions=(_version(key), _version(query)))
    shape = (num_edges, *key.shape[1:-1], 1)
    return _Scores.apply(recipe, shape, gradients, key, query)  # type: ignore[no-any-return]


def weights(graph: Any, logits: PendingEdges, softmax: Compute) -> Tensor | None:
    """Put off ``softmax(logits)``, or None where the logits are not scores of this graph."""
    recipe = logits.recipe
    if recipe is None or recipe.weights or recipe.graph is not graph:
        return None
    steps = (*recipe.steps, logits)
    recipe = replace(recipe, softmax=softmax, weights=True, steps=steps)
    return _Weights.apply(recipe, tuple(logits.shape), softmax, logits)  # type: ignore[no-any-return]


def attention_of(graph: Any, value: Tensor, factor: Any) -> Recipe | None:
    """The recipe of ``factor`` if ``value`` times it, summed, is attention on this graph.

    Its key and query are in autograd's graph if the factor is.
    """
    if not isinstance(factor, PendingEdges):
        return None
    recipe = factor.recipe
    fits = (
        recipe is not None
        and recipe.weights
        and recipe.graph is graph
        and value.shape[1:] == recipe.key.shape[1:]
        and value.dtype == recipe.key.dtype
        and value.device == recipe.key.device
    )
    if recipe is None or not fits:
        return None
    if recipe.stale() and factor.held is not None:
        return None
    recipe.check()
    if not factor.requires_grad:
        return replace(recipe, key=recipe.key.detach(), query=recipe.query.detach())
    return None if any(_watched(step) for step in (*recipe.steps, factor)) else recipe


def _watched(step: PendingEdges) -> bool:
    """Whether somebody waits for the gradient of this tensor."""
    return bool(step.is_leaf or step.retains_grad or step._backward_hooks)
