"""The graph transformer layer, for DGL graphs and ``edge_index`` alike."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gnn_backend.errors import invalid
from gnn_backend.layers.transformer import gated_sum, transformer
from gnn_backend.nn.graphs import graph_of


class GraphTransformerConv(nn.Module):
    r"""Dot-product attention over in-edges with a skip connection (UniMP, Shi et al. 2021).

    For every destination :math:`i` and head, over its in-edges :math:`e = (j \to i)`,

    .. math::
        y_i = \sum_e \mathrm{softmax}_i\!\left(
        \frac{\langle W_q x_i, W_k x_j + W_e f_e \rangle}{\sqrt{D}} \right)
        (W_v x_j + W_e f_e)

    and, once the heads are combined, :math:`y_i + W_s x_i`, or with ``beta`` a learned mean of
    the two. Nothing edge-wise is stored; edge features are read as they are, never projected.

    Parameters
    ----------
    in_channels : int or (int, int)
        Width of the features, or of the sources' and the destinations'.
    out_channels : int
        Width D of a head, 1 to 1024.
    heads : int
    edge_dim : int, optional
        Width of edge features, 1 to 1024.
    concat : bool
        Concatenate the heads; otherwise their mean is taken.
    dropout : float
        Probability that an attention weight is dropped in training.
    root_weight : bool
        Add the projected features of the destination.
    beta : bool
        Weigh the skip connection by a learned gate.
    bias : bool
        Of the projections; that of edge features has none.

    Raises
    ------
    InvalidArgument
        A size or a probability that is none.
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        *,
        edge_dim: int | None = None,
        concat: bool = True,
        dropout: float = 0.0,
        root_weight: bool = True,
        beta: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        src, dst = (in_channels,) * 2 if isinstance(in_channels, int) else in_channels
        for name, size in (("out_channels", out_channels), ("heads", heads)):
            if not isinstance(size, int) or size < 1:
                raise invalid(name, "no size", size, "a positive int")
        if not 0.0 <= dropout <= 1.0:
            raise invalid("dropout", "not a probability", dropout, "a number from 0 to 1")
        if beta and not root_weight:
            raise invalid("beta", "nothing to weigh", "root_weight=False", "root_weight=True")
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.edge_dim, self.concat, self.dropout = edge_dim, concat, dropout
        width = heads * out_channels
        self.query = nn.Linear(dst, width, bias=bias)
        self.key = nn.Linear(src, width, bias=bias)
        self.value = nn.Linear(src, width, bias=bias)
        self.edge = None if edge_dim is None else nn.Linear(edge_dim, width, bias=False)
        result = width if concat else out_channels
        self.skip = nn.Linear(dst, result, bias=bias) if root_weight else None
        self.gate = nn.Linear(3 * result, 1, bias=False) if beta else None

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                module.reset_parameters()

    def forward(
        self,
        graph: Any,
        x: Tensor | tuple[Tensor, Tensor],
        edge_features: Tensor | None = None,
        *,
        return_attention: bool = False,
    ) -> Any:
        """Apply the layer.

        Parameters
        ----------
        graph : DGLGraph, Tensor [2, E] or gnn_backend.graph.Graph
            Of one relation. What is built from it is kept with it.
        x : Tensor [N, F] or pair of Tensor [num_src, F_src], [num_dst, F_dst]
            On a DGL block a single tensor is that of the sources, the first of which are the
            destinations.
        edge_features : Tensor [E, edge_dim], optional
            In the graph's edge order; needed if and only if the layer has ``edge_dim``.
        return_attention : bool
            Return the weights as well.

        Returns
        -------
        out : Tensor [num_dst, heads * D] (``concat``) or [num_dst, D]
        attention : Tensor [E, heads]
            After dropout, if asked for; then the result is a tuple.

        Raises
        ------
        InvalidArgument
            Shapes, dtypes or devices do not fit each other or the graph.
        Unsupported
            No kernel for this dtype, device or width; ``reason`` says which.
        """
        if (edge_features is None) != (self.edge is None):
            got = None if edge_features is None else tuple(edge_features.shape)
            raise invalid("edge_features", "not as the layer was made", got,
                          f"[E, {self.edge_dim}]" if self.edge else None)  # fmt: skip
        h_src, h_dst = x if isinstance(x, tuple) else (x, x)
        if getattr(graph, "is_block", False) and not isinstance(x, tuple):
            h_dst = x[: graph.num_dst_nodes()]
        structure = graph_of(graph, h_src.shape[0], h_dst.shape[0])
        shape = (-1, self.heads, self.out_channels)
        found = transformer(
            structure,
            self.query(h_dst).view(shape),
            self.key(h_src).view(shape),
            self.value(h_src).view(shape),
            edge_features=edge_features,
            edge_weight=None if self.edge is None else self.edge.weight,
            dropout_p=self.dropout if self.training else 0.0,
            heads="concat" if self.concat else "mean",
            return_attention=return_attention,
        )
        out, *attention = found if return_attention else (found,)
        if self.skip is not None:
            skip = self.skip(h_dst)
            out = out + skip if self.gate is None else gated_sum(out, skip, self.gate)
        return (out, *attention) if return_attention else out

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"
