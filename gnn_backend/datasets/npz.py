"""Graphs from npz files."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch

from gnn_backend.datasets.data import GraphData
from gnn_backend.datasets.knowledge import knowledge_graph
from gnn_backend.datasets.sizes import names
from gnn_backend.errors import InvalidArgument, invalid

#: What numpy raises for a file that is empty, cut off, damaged, or a plain ``.npy``.
_UNREADABLE = (
    ValueError, OSError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def load_npz(path: str | Path) -> GraphData:
    """Read a graph from an npz file.

    The file holds ``edge_index`` [2, E] (any integer type) and, as it likes, ``num_nodes``, ``x``
    [N, F] (or its CSR parts ``x_indptr``, ``x_indices``, ``x_data``, ``x_dim``), ``y`` [N] and
    for each of train, val, test a ``*_mask`` [N] or ``*_idx``. Or it has the triples of a typed
    graph (:func:`knowledge_graph`).

    Raises
    ------
    InvalidArgument
        If there is no such file, it is not an npz, or ``edge_index`` is missing or malformed.
    """
    path = Path(path)
    if not path.is_file():
        known = ", ".join(names())
        raise invalid("graph", "no such file", str(path), f"an npz file or one of {known}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            fields = {key: archive[key] for key in archive.files}
    except _UNREADABLE as error:
        raise invalid(
            "graph", "not an npz archive", f"{path} ({error})", "numpy.savez output"
        ) from None
    try:
        if "edge_index" not in fields and ("triples" in fields or "train" in fields):
            return knowledge_graph(path.stem, fields)
        return _from_fields(path.stem, fields)
    except InvalidArgument:
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        what = f"{path} ({type(error).__name__}: {error})"
        raise invalid("graph", "fields that do not fit", what, "those of load_npz") from None


def _from_fields(name: str, fields: dict[str, np.ndarray]) -> GraphData:
    edges = fields.get("edge_index")
    if edges is None or edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        got = sorted(fields) if edges is None else f"{edges.dtype} {list(edges.shape)}"
        raise invalid("graph", "no usable edge_index", got, "an integer array [2, E]")
    top = int(edges.max()) + 1 if edges.size else 0
    num_nodes = int(fields["num_nodes"]) if "num_nodes" in fields else top
    if edges.size and (int(edges.min()) < 0 or top > num_nodes):
        seen = f"ids {int(edges.min())}..{top - 1}"
        raise invalid("edge_index", "node id out of range", seen, f"0..{num_nodes - 1}")
    if not 0 <= num_nodes < 2**31:
        raise invalid("num_nodes", "out of range", num_nodes, "0 to 2^31 - 1")
    x, y = _features(fields, num_nodes), fields.get("y")
    return GraphData(
        name,
        torch.from_numpy(edges.astype(np.int64)),
        num_nodes,
        x=None if x is None else torch.from_numpy(x),
        y=None if y is None else torch.from_numpy(y.astype(np.int64)),
        splits=_split_masks(fields, num_nodes),
    )


def _features(fields: dict[str, np.ndarray], num_nodes: int) -> np.ndarray | None:
    if "x" in fields:
        return fields["x"].astype(np.float32)
    if "x_indptr" not in fields:
        return None
    dense = np.zeros((num_nodes, int(fields["x_dim"])), np.float32)
    rows = np.repeat(np.arange(num_nodes), np.diff(fields["x_indptr"]))
    dense[rows, fields["x_indices"]] = fields["x_data"]
    return dense


def _split_masks(fields: dict[str, np.ndarray], num_nodes: int) -> dict[str, torch.Tensor]:
    masks = {}
    for part in ("train", "val", "test"):
        if f"{part}_mask" in fields:
            masks[part] = torch.from_numpy(fields[f"{part}_mask"].astype(bool))
        elif f"{part}_idx" in fields:
            mask = np.zeros(num_nodes, bool)
            mask[fields[f"{part}_idx"]] = True
            masks[part] = torch.from_numpy(mask)
    return masks
