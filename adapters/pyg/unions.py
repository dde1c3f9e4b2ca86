"""Unions of relations that PyG gives as edge lists, kept for as long as these tensors live."""

from __future__ import annotations

from gnn_backend.adapters.pyg.edges import is_untracked, stamp
from gnn_backend.adapters.tensor_cache import TensorCache
from gnn_backend.layers.hetero.union import Union

unions: TensorCache[Union] = TensorCache(stamp, is_untracked)
