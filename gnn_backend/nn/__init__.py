"""Layers of our own, for graphs of any host: ``torch.nn`` modules over the fused operators."""

from gnn_backend.nn.graph_transformer import GraphTransformerConv

__all__ = ["GraphTransformerConv"]
