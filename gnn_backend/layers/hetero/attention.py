"""GAT and GATv2 within each of many relations, together."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.ir.domains import Domain
from gnn_backend.layers.hetero.products import at_pairs, own_rows, spread, with_bias
from gnn_backend.layers.hetero.union import Rows, Union
from gnn_backend.ops.attention import gat_attention, gatv2_attention

GATV2_PARTS = 3  # widths of a head's row in hetero_gatv2
_SMALL = {torch.float16: 2.0**-12}  # stands for an attention of 0; elsewhere 2**-60


def hetero_gat(
    union: Union,
    x_src: Tensor,
    x_dst: Tensor,
    src: Tensor,
    dst: Tensor,
    att_src: Tensor,
    att_dst: Tensor,
    *,
    negative_slope: float,
    dropout_p: float = 0.0,
) -> Tensor:
    r"""GAT within each relation.

    A share of a logit is linear in the node's features, :math:`\langle a_r, x W_r \rangle =
    \langle x, W_r a_r \rangle`, so destinations are never projected.

    Parameters
    ----------
    union : Union
    x_src, x_dst : Tensor [num_src, F], [num_dst, F_dst]
    src, dst : Tensor [R, F, H * D], [R, F_dst, H * D]
        Projections.
    att_src, att_dst : Tensor [R, H, D]
    negative_slope, dropout_p : float

    Returns
    -------
    Tensor [destination pairs, H, D]
    """
    heads, dim = att_src.shape[1:]
    to_score = _folded(src, att_src)
    found = at_pairs(union, Domain.SRC_PAIR, x_src, torch.cat((src, to_score), dim=2))
    values, el = found.split((heads * dim, heads), dim=1)
    er = at_pairs(union, Domain.DST_PAIR, x_dst, _folded(dst, att_dst))
    graph = union.graph(Domain.EDGE, Domain.SRC_PAIR, Domain.DST_PAIR)
    out: Tensor = gat_attention(
        graph, values.reshape(-1, heads, dim), el.contiguous(), er,
        negative_slope=negative_slope, dropout_p=dropout_p,
    )  # fmt: skip
    return out


def hetero_gatv2(
    union: Union,
    x_src: Tensor,
    x_dst: Tensor,
    src: Tensor,
    dst: Tensor,
    att: Tensor,
    *,
    src_bias: Tensor | None = None,
    dst_bias: Tensor | None = None,
    negative_slope: float,
    dropout_p: float = 0.0,
) -> Tensor:
    r"""GATv2 within each relation.

    The operator has one attention vector, relations have one each. With :math:`a = a^+ - a^-`,
    both parts positive, :math:`\langle a, \mathrm{LeakyReLU}(z) \rangle = \sum_d
    \mathrm{LeakyReLU}(a^+_d z_d) - \sum_d \mathrm{LeakyReLU}(a^-_d z_d)`: the parts go into the
    projections, and rows :math:`[a^+ z, a^- z, z]` share the vector :math:`[1, -1, 0]`.

    Parameters
    ----------
    union : Union
    x_src, x_dst : Tensor [num_src, F], [num_dst, F_dst]
    src, dst : Tensor [R, F, H * D], [R, F_dst, H * D]
        Projections.
    att : Tensor [R, H, D]
    src_bias, dst_bias : Tensor [R, H * D], optional
    negative_slope, dropout_p : float

    Returns
    -------
    Tensor [destination pairs, H, D]
    """
    relations, heads, dim = att.shape
    # A gradient must reach an attention of exactly 0, which neither part would pass on.
    small = _SMALL.get(att.dtype, 2.0**-60)
    positive = torch.where(att >= 0, att + small * (att == 0), 0.0)
    negative = torch.where(att < 0, -att, 0.0)

    def parts(table: Tensor, values: Tensor) -> Tensor:
        """Projections [R, *, H * D] as those of the three parts, [R, *, H * 3 D]."""
        z = table.unflatten(2, (heads, dim))
        scaled = torch.stack((positive, negative), dim=2).unsqueeze(1)
        found = torch.cat((scaled * z.unsqueeze(3), (values * z).unsqueeze(3)), dim=3)
        return found.reshape(relations, -1, heads * 3 * dim)

    one, zero = att.new_ones(()), att.new_zeros(())
    biases = [None if b is None else parts(b.unsqueeze(1), v).squeeze(1)
              for b, v in ((src_bias, one), (dst_bias, zero))]  # fmt: skip
    rows_src = at_pairs(union, Domain.SRC_PAIR, x_src, parts(src, one), biases[0])
    rows_dst = at_pairs(union, Domain.DST_PAIR, x_dst, parts(dst, zero), biases[1])
    shared = att.new_tensor([1.0, -1.0, 0.0]).repeat_interleave(dim).expand(heads, 3 * dim)
    graph = union.graph(Domain.EDGE, Domain.SRC_PAIR, Domain.DST_PAIR)
    out: Tensor = gatv2_attention(
        graph, rows_src.view(-1, heads, 3 * dim), rows_dst.view(-1, heads, 3 * dim),
        shared.contiguous(), negative_slope=negative_slope, dropout_p=dropout_p,
    )  # fmt: skip
    return out[..., 2 * dim :]


def combined(
    union: Union,
    rows: Rows,
    out: Tensor,
    x_dst: Tensor,
    *,
    concat: bool,
    residual: Tensor | bool | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """What attention gives [pairs, H, D], its heads combined, in the rows of the result.

    Parameters
    ----------
    union : Union
    rows : Rows
    out : Tensor [pairs, H, D]
    x_dst : Tensor [num_dst, F_dst]
    concat : bool
        Lay heads side by side, or take their mean.
    residual : Tensor [R, F_dst, columns], True or None
        Maps the destinations' own rows that are added; True: they are added as they are.
    bias : Tensor [R, columns], optional

    Returns
    -------
    Tensor [rows, columns]
    """
    found = spread(union, rows, out.flatten(1) if concat else out.mean(1))
    if residual is not None and residual is not False:
        found = found + own_rows(rows, x_dst, None if residual is True else residual)
    return with_bias(rows, found, bias)


def _folded(weight: Tensor, att: Tensor) -> Tensor:
    """:math:`W_r a_r`, [R, F, H]."""
    split = weight.unflatten(2, att.shape[1:])
    return (split * att.unsqueeze(1)).sum(3)
