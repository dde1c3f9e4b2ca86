"""How a functor's operands come from projected features, and their gradients go back to these.

A form is what :mod:`gnn_backend.ops.projected_attention` needs to know of an attention: the
operands of its functor as functions of the tables at both ends [N, H, D] and of the layer's
parameters, and the derivatives of these functions, written so that they add in place and allocate
no table that the kernels have not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_backend.ops.functors import FUNCTORS, Functor
from gnn_backend.runtime.pages import fresh_like

_LEAST_LENGTH = 1e-12  # that rows are divided by, as in torch.nn.functional.normalize
_CHUNK = 1 << 17  # features whose product with a parameter is computed at a time: they stay in L2


class Ends(NamedTuple):
    """Tables [num_src, H, D] and [num_dst, H, D]; ``shared``: the latter are rows of the former."""

    src: Tensor
    dst: Tensor
    shared: bool


class Asked(NamedTuple):
    """Which gradients are wanted; with shared ends ``dst`` is ``src``."""

    src: bool
    dst: bool
    params: tuple[bool, ...]


class Gradients(NamedTuple):
    """Towards the ends, and the parameters; of shared ends all is in ``src``."""

    src: Tensor | None
    dst: Tensor | None
    params: tuple[Tensor | None, ...]


class Form(ABC):
    """One attention.

    Attributes
    ----------
    functor : Functor
    params : int
        How many parameters it has, two at most.
    """

    functor: Functor
    params: int

    def param_shapes(self, heads: int, dim: int) -> tuple[tuple[int, ...], ...]:
        """Shapes that a parameter may have."""
        return (heads, dim), (1, heads, dim)

    def derived(self, ends: Ends, params: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What is computed from tables and parameters before attention, in differentiable torch."""
        return ()

    @abstractmethod
    def operands(
        self, ends: Ends, params: tuple[Tensor, ...], derived: tuple[Tensor, ...]
    ) -> dict[str, Tensor]:
        """The functor's operands by name."""

    @abstractmethod
    def wanted(self, asked: Asked) -> frozenset[str]:
        """The operands whose gradients the wanted ones are made of."""

    @abstractmethod
    def gradients(
        self,
        found: Mapping[str, Tensor],
        ends: Ends,
        params: tuple[Tensor, ...],
        derived: tuple[Tensor, ...],
        asked: Asked,
    ) -> Gradients:
        """Lead the gradients of the operands back; those in ``found`` are changed in place."""


def named(**wanted: bool) -> frozenset[str]:
    """The names that are true."""
    return frozenset(name for name, want in wanted.items() if want)


def first(table: Tensor, rows: int) -> Tensor:
    """The first rows of a table."""
    return table if table.shape[0] == rows else table[:rows]


def merged(
    src: Tensor | None, dst: Tensor | None, ends: Ends
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of both ends; those of shared ends added into the sources'."""
    if not ends.shared or src is None or dst is None:
        return src, dst
    first(src, dst.shape[0]).add_(dst)
    return src, None


class GATv2(Form):
    """Both tables and the parameter are operands as they are."""

    functor = FUNCTORS["gatv2"]
    params = 1

    def operands(
        self, ends: Ends, params: tuple[Tensor, ...], derived: tuple[Tensor, ...]
    ) -> dict[str, Tensor]:
        return {"x_src": ends.src, "x_dst": ends.dst, "att": params[0]}

    def wanted(self, asked: Asked) -> frozenset[str]:
        return named(x_src=asked.src, x_dst=asked.dst, att=asked.params[0])

    def gradients(
        self,
        found: Mapping[str, Tensor],
        ends: Ends,
        params: tuple[Tensor, ...],
        derived: tuple[Tensor, ...],
        asked: Asked,
    ) -> Gradients:
        pair = merged(found.get("x_src"), found.get("x_dst"), ends)
        return Gradients(*pair, (found.get("att"),))


class Dot(Form):
    """Keys and values are the sources, queries the destinations."""

    functor = FUNCTORS["dot"]
    params = 0

    def operands(
        self, ends: Ends, params: tuple[Tensor, ...], derived: tuple[Tensor, ...]
    ) -> dict[str, Tensor]:
        return {"q_dst": ends.dst, "k_src": ends.src, "v_src": ends.src}

    def wanted(self, asked: Asked) -> frozenset[str]:
        return named(q_dst=asked.dst, k_src=asked.src, v_src=asked.src)

    def gradients(
        self,
        found: Mapping[str, Tensor],
        ends: Ends,
        params: tuple[Tensor, ...],
        derived: tuple[Tensor, ...],
        asked: Asked,
    ) -> Gradients:
        of_src = found["v_src"].add_(found["k_src"]) if asked.src else None
        return Gradients(*merged(of_src, found.get("q_dst"), ends), ())


class GAT(Form):
    """Each end brings one score a head, ``<x, att>``."""

    functor = FUNCTORS["gat"]
    params = 2

    def derived(self, ends: Ends, params: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Scores of the sources [num_src, H] and of the destinations [num_dst, H]."""
        return scores(ends.src, params[0]), scores(ends.dst, params[1])

    def operands(
        self, ends: Ends, params: tuple[Tensor, ...], derived: tuple[Tensor, ...]
    ) -> dict[str, Tensor]:
        return {"x_src": ends.src, "el": derived[0], "er": derived[1]}

    def wanted(self, asked: Asked) -> frozenset[str]:
        of_el, of_er = asked.src or asked.params[0], asked.dst or asked.params[1]
        return named(x_src=asked.src, el=of_el, er=of_er)

    def gradients(
        self,
        found: Mapping[str, Tensor],
        ends: Ends,
        params: tuple[Tensor, ...],
        derived: tuple[Tensor, ...],
        asked: Asked,
    ) -> Gradients:
        att_src, att_dst = (att.view(1, *att.shape[-2:]) for att in params)
        of_src, of_dst = found.get("x_src"), None
        if of_src is not None:
            of_src.addcmul_(found["el"].unsqueeze(-1), att_src)
        if asked.dst and ends.shared:
            assert of_src is not None
            rows = first(of_src, ends.dst.shape[0])
            rows.addcmul_(found["er"].unsqueeze(-1), att_dst)
        elif asked.dst:
            of_dst = found["er"].unsqueeze(-1) * att_dst
        return Gradients(of_src, of_dst, self._of_params(found, ends, params, asked))

    @staticmethod
    def _of_params(
        found: Mapping[str, Tensor], ends: Ends, params: tuple[Tensor, ...], asked: Asked
    ) -> tuple[Tensor | None, ...]:
        if all(asked.params) and ends.shared and ends.src.shape == ends.dst.shape:
            both = torch.cat((found["el"], found["er"]), dim=1)  # the table is read once
            return _score_gradients(both, ends.src, params)
        return (
            _score_gradients(found["el"], ends.src, params[:1])[0] if asked.params[0] else None,
            _score_gradients(found["er"], ends.dst, params[1:])[0] if asked.params[1] else None,
        )


def scores(table: Tensor, att: Tensor) -> Tensor:
    """Sums over features of ``table * att``.

    Parameters
    ----------
    table : Tensor [N, H, D]
    att : Tensor [H, D] or [1, H, D]

    Returns
    -------
    Tensor [N, H]
    """
    rows = table.shape[0]
    step = max(1, _CHUNK // max(1, att.numel()))
    # Autograd would fill a gradient of the whole table for each chunk.
    if rows <= step or not table.is_cpu or torch.is_grad_enabled():
        return (table * att).sum(-1)
    parts = [(table[at : at + step] * att).sum(-1) for at in range(0, rows, step)]
    return torch.cat(parts)


def _score_gradients(
    gradient: Tensor, table: Tensor, params: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Gradients of parameters from those of their scores, [N, H] each, side by side.

    The product of all pairs of heads reads the table once, in place of products [N, H, D].
    """
    heads, dim = params[0].shape[-2:]
    # Few long rows: as a transposed view they take ten times as long on a CPU.
    columns = gradient.t().contiguous()
    pairs = torch.mm(columns, table.flatten(1)).view(len(params), heads, heads, dim)
    own = pairs.diagonal(dim1=1, dim2=2).transpose(1, 2)
    return tuple(part.reshape(att.shape) for part, att in zip(own, params, strict=True))


class SuperGAT(GAT):
    """The rows of both ends, and each end's score a head; without parameters the scores are 0."""

    functor = FUNCTORS["supergat"]

    def __init__(self, params: int) -> None:
        self.params = params

    def derived(self, ends: Ends, params: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if params:
            return super().derived(ends, params)
        return ends.src.new_zeros(ends.src.shape[:2]), ends.dst.new_zeros(ends.dst.shape[:2])

    def operands(
        self, ends: Ends, params: tuple[Tensor, ...], derived: tuple[Tensor, ...]
    ) -> dict[str, Tensor]:
        return super().operands(ends, params, derived) | {"x_dst": ends.dst}

    def wanted(self, asked: Asked) -> frozenset[str]:
        rows = named(x_src=asked.src, x_dst=asked.dst)
        return rows | super().wanted(asked) if self.params else rows

    def gradients(
        self,
        found: Mapping[str, Tensor],
        ends: Ends,
        params: tuple[Tensor, ...],
        derived: tuple[Tensor, ...],
        asked: Asked,
    ) -> Gradients:
        of_src, of_dst = merged(found.get("x_src"), found.get("x_dst"), ends)
        if not params:
            return Gradients(of_src, of_dst, ())
        scored = super().gradients(found, ends, params, derived, asked)
        if scored.dst is not None and of_dst is not None:
            of_dst.add_(scored.dst)
        return scored._replace(dst=of_dst)


class AGNN(Form):
    """Cosines of the rows as they are, scaled by the parameter [1]; of shared ends only.

    Keys are the rows themselves: their inverse lengths are factors of the logits, so that an edge
    reads one row, which is the value as well.
    """

    functor = FUNCTORS["scaled_dot"]
    params = 1

    def param_shapes(self, heads: int, dim: int) -> tuple[tuple[int, ...], ...]:
        return ((1,),)

    def derived(self, ends: Ends, params: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Queries, inverse lengths [N, H] and, as the functor has them, shares that are 0."""
        lengths = torch.linalg.vector_norm(ends.src, dim=-1).clamp_min(_LEAST_LENGTH)
        inverse = lengths.reciprocal()
        own = first(inverse, ends.dst.shape[0])
        factor = (own * params[0]).unsqueeze(-1)
        query = torch.mul(ends.dst, factor, out=_target(ends.dst))
        return query, inverse, own.new_zeros(own.shape)

    def operands(
        self, ends: Ends, params: tuple[Tensor, ...], derived: tuple[Tensor, ...]
    ) -> dict[str, Tensor]:
        return {"x_src": ends.src, "el": derived[1], "q_dst": derived[0], "er": derived[2]}

    def wanted(self, asked: Asked) -> frozenset[str]:
        query = asked.src or asked.params[0]
        return named(q_dst=query, x_src=asked.src, el=asked.src)

    def gradients(
        self,
        found: Mapping[str, Tensor],
        ends: Ends,
        params: tuple[Tensor, ...],
        derived: tuple[Tensor, ...],
        asked: Asked,
    ) -> Gradients:
        inverse, of_query = derived[1], found["q_dst"]
        own = first(inverse, of_query.shape[0])
        wide = torch.promote_types(own.dtype, torch.float32)
        along = (of_query.to(wide) * ends.dst).sum(-1)
        of_beta = (along * own).sum().view(1).to(own.dtype) if asked.params[0] else None
        if not asked.src:
            return Gradients(None, None, (of_beta,))
        of_src, of_inverse = found["x_src"], found["el"]
        first(of_src, own.shape[0]).addcmul_(of_query, (own * params[0]).unsqueeze(-1))
        # The inverse length r changes by -r^3 x; one of a length below the least is a constant.
        first(of_inverse, own.shape[0]).addcmul_(along.to(own.dtype), params[0])
        of_inverse.masked_fill_(inverse >= 1.0 / _LEAST_LENGTH, 0.0)
        of_inverse.mul_(inverse**3).unsqueeze_(-1)
        return Gradients(of_src.addcmul_(ends.src, of_inverse, value=-1.0), None, (of_beta,))


def _target(table: Tensor) -> Tensor | None:
    """Fresh memory for a result of this shape, where autograd is not recording."""
    return fresh_like(table) if table.is_cpu and not torch.is_grad_enabled() else None


FORMS: dict[str, Form] = {
    "gatv2": GATv2(),
    "gat": GAT(),
    "dot": Dot(),
    "agnn": AGNN(),
    "supergat": SuperGAT(2),
    "supergat scaled": SuperGAT(0),
}
