"""Small models and calls that rows of the table of DGL's layers need beside a constructor."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import dgl
import torch
from dgl import nn as layers
from torch import Tensor, nn

from gnn_backend.bench.dgl_inputs import TYPES, Inputs


class Classifier(nn.Module):
    """One convolution and a readout, with the arguments that DGL's explainers call a model with.

    It has the parameters fixed, as a model that is explained has been trained.
    """

    def __init__(self, given: Inputs) -> None:
        super().__init__()
        self.conv = layers.GraphConv(given.in_dim, given.dim, allow_zero_in_degree=True)
        self.classes = nn.Linear(given.dim, TYPES)
        self.requires_grad_(False)

    def forward(
        self,
        graph: Any,
        feat: Tensor,
        eweight: Tensor | None = None,
        edge_weight: Tensor | None = None,
        embed: bool = False,
    ) -> Tensor:
        """Embeddings [N, dim] if ``embed``, else scores of the graph's class [1, TYPES]."""
        weight = edge_weight if eweight is None else eweight
        hidden = self.conv(graph, feat, edge_weight=weight).relu()
        return hidden if embed else self.classes(hidden.mean(0, keepdim=True))


class HeteroClassifier(nn.Module):
    """:class:`Classifier` of graphs with the node types a and b."""

    def __init__(self, given: Inputs) -> None:
        super().__init__()
        convs = {
            name: layers.GraphConv(given.in_dim, given.dim, allow_zero_in_degree=True)
            for name in ("ab", "ba", "aa")
        }
        self.conv = layers.HeteroGraphConv(convs)
        self.classes = nn.Linear(given.dim, TYPES)
        self.requires_grad_(False)

    def forward(
        self,
        graph: Any,
        feat: Mapping[str, Tensor],
        eweight: Mapping[Any, Tensor] | None = None,
        edge_weight: Mapping[Any, Tensor] | None = None,
        embed: bool = False,
    ) -> Any:
        """Embeddings by node type if ``embed``, else scores of the graph's class [1, TYPES]."""
        weights = (edge_weight if eweight is None else eweight) or {}
        by_type = {etype[1]: {"edge_weight": weight} for etype, weight in weights.items()}
        hidden = {k: h.relu() for k, h in self.conv(graph, feat, mod_kwargs=by_type).items()}
        if embed:
            return hidden
        return self.classes(torch.cat(list(hidden.values())).mean(0, keepdim=True))


class TypedWeights(nn.Module):
    """The weights [TYPES, in_dim, dim] of a product that chooses one for each row."""

    def __init__(self, given: Inputs) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(TYPES, given.in_dim, given.dim))


def meta_path(given: Inputs) -> nn.Module:
    """``MetaPath2Vec`` of a small graph: it walks from one node after the other, with a bar."""
    with contextlib.redirect_stderr(io.StringIO()):
        return layers.MetaPath2Vec(
            given.small_relations, ["ab", "ba"], window_size=1, emb_dim=given.dim, sparse=False
        )


def explain_graph(explainer: Any, graph: Any, feat: Any) -> Any:
    """What an explainer holds important: probabilities and masks, by tensor.

    Some train masks, also where no gradient is wanted of them. Their own backward writes ``.grad``
    of what they are given, so they get no leaves.
    """
    with torch.enable_grad():
        found = explainer.explain_graph(graph.local_var(), _fixed(feat))
    return tuple(_by_name(part) for part in found)


def on_a_view(layer: nn.Module, graph: Any, x: Tensor) -> Any:
    """Call a layer that writes to its graph."""
    return layer(graph.local_var(), x)


def attention_in_three_calls(_: nn.Module, graph: Any, x: Tensor, x0: Tensor) -> Any:
    """Attention of one head, as users of DGL write it: queries and values are one table."""
    scores = dgl.ops.u_dot_v(graph, x0, x) / x.shape[-1] ** 0.5
    return dgl.ops.u_mul_e_sum(graph, x, dgl.ops.edge_softmax(graph, scores))


def _fixed(feat: Any) -> Any:
    if isinstance(feat, dict):
        return {name: x.detach() for name, x in feat.items()}
    return feat.detach()


def _by_name(found: Any) -> Any:
    """Masks of edge types under one word each."""
    if isinstance(found, Mapping):
        return {k[1] if isinstance(k, tuple) else k: mask for k, mask in found.items()}
    return found
