"""Typed graphs out of triples (head, relation, tail)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from gnn_backend.datasets.data import RelationalData
from gnn_backend.errors import invalid

_PARTS = {"train": "train", "val": "valid", "test": "test"}  # our name -> the files'


def knowledge_graph(name: str, fields: Mapping[str, np.ndarray]) -> RelationalData:
    """Graph of the arrays of a file.

    Parameters
    ----------
    name : str
    fields : mapping of str to array
        ``triples`` [E, 3], or ``train``, and as it likes ``valid`` and ``test``, whose edges are
        those of ``train`` and then their reverses, of types of their own. Besides, as it likes,
        ``num_nodes``, ``num_relations``, ``relation_names`` or ``relation_symbols``, ``node_type``
        and ``node_type_names``, ``node_section`` and ``section_names``: labels (-1: none).

    Raises
    ------
    InvalidArgument
        Triples that are malformed or out of range.
    """
    if "triples" in fields:
        triples = {"triples": _triples("triples", fields["triples"])}
    else:
        triples = {
            ours: _triples(theirs, fields[theirs])
            for ours, theirs in _PARTS.items()
            if theirs in fields
        }
    every = torch.cat(list(triples.values()))
    num_nodes = _count("num_nodes", fields, every[:, [0, 2]])
    relations = _count("num_relations", fields, every[:, 1])
    head, relation, tail = next(iter(triples.values())).unbind(1)
    names = fields.get("relation_names", fields.get("relation_symbols", ()))
    kinds, labels = fields.get("node_type"), fields.get("node_section")
    plain = RelationalData(
        name,
        torch.stack([head, tail]),
        num_nodes,
        edge_type=relation,
        num_edge_types=relations,
        edge_type_names=tuple(map(str, names)),
        node_type=None if kinds is None else torch.from_numpy(kinds.astype(np.int64)),
        num_node_types=1 if kinds is None else int(kinds.max(initial=0)) + 1,
        node_type_names=tuple(map(str, fields.get("node_type_names", ()))),
        y=None if labels is None else torch.from_numpy(labels.astype(np.int64)),
        class_names=tuple(map(str, fields.get("section_names", ()))),
        triples={} if "triples" in fields else triples,
    )
    return plain.with_reverses() if plain.triples else plain


def _triples(field: str, rows: np.ndarray) -> torch.Tensor:
    if rows.ndim != 2 or rows.shape[1] != 3 or rows.dtype.kind not in "iu":
        got = f"{rows.dtype} {list(rows.shape)}"
        raise invalid("graph", f"no usable {field}", got, "an integer array [E, 3]")
    return torch.from_numpy(rows.astype(np.int64))


def _count(field: str, fields: Mapping[str, np.ndarray], ids: torch.Tensor) -> int:
    """How many nodes or relations there are."""
    low, high = (int(ids.min()), int(ids.max())) if ids.numel() else (0, -1)
    count = int(fields[field]) if field in fields else high + 1
    if low < 0 or high >= count:
        raise invalid(field, "an id out of range", f"ids {low}..{high}", f"0..{count - 1}")
    return count
