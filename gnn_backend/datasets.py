"""Graphs for tests, benchmarks and examples: one seeded generator and one loader of npz files."""

from __future__ import annotations

import dataclasses
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch

from gnn_backend.errors import InvalidArgument, invalid

#: Heavy-tailed graphs by name: (nodes, edges).
NAMED_GRAPHS: dict[str, tuple[int, int]] = {
    "tolokers-like": (11_758, 1_038_000),
    "arxiv-like": (169_343, 2_315_598),
    "reddit-like": (232_965, 114_615_892),
    "products-like": (2_449_029, 123_718_280),
}
#: Stochastic block models by name: nodes, nodes a block, density.
BLOCK_MODELS: dict[str, tuple[int, int, float]] = {"block-model": (16_384, 256, 0.5)}
#: Road-like grids by name: rows, columns.
GRIDS: dict[str, tuple[int, int]] = {"grid": (1000, 1000)}
SHUFFLED = ":shuffled"  # behind the name of a graph: its nodes numbered at random


#: What numpy raises for a file that is empty, cut off, damaged, or a plain ``.npy``.
_UNREADABLE = (
    ValueError, OSError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class GraphData:
    """A homogeneous graph with whatever its file says about the nodes.

    Attributes
    ----------
    name : str
        File stem, or the name of a generated graph.
    edge_index : Tensor
        int64 [2, E]; row 0 the sources, row 1 the destinations.
    num_nodes : int
    x : Tensor or None
        float32 [N, F] node features.
    y : Tensor or None
        int64 [N] labels.
    splits : dict of str to Tensor
        Boolean [N] masks under "train", "val" and "test", as far as the file has them.
    """

    name: str
    edge_index: torch.Tensor
    num_nodes: int
    x: torch.Tensor | None = None
    y: torch.Tensor | None = None
    splits: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)

    @property
    def num_edges(self) -> int:
        return int(self.edge_index.shape[1])

    def to(self, device: torch.device | str) -> GraphData:
        """Copy of this graph whose edges and features are on ``device``."""
        moved = {k: v.to(device) for k, v in self.splits.items()}
        x = None if self.x is None else self.x.to(device)
        y = None if self.y is None else self.y.to(device)
        edge_index = self.edge_index.to(device)
        return dataclasses.replace(self, edge_index=edge_index, x=x, y=y, splits=moved)


def rmat(
    num_nodes: int,
    num_edges: int,
    *,
    quadrants: tuple[float, float, float] = (0.57, 0.19, 0.19),
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Recursive-matrix graph: a directed multigraph with heavy-tailed degrees.

    Every bit of an edge's (source, destination) pair is drawn from the quadrant probabilities
    (a, b, c, 1-a-b-c); node ids are permuted, so that hubs are spread, and folded into
    ``num_nodes``.

    Parameters
    ----------
    num_nodes, num_edges : int
    quadrants : (a, b, c)
        a keeps both bits 0, b sets the destination's bit, c the source's.
    seed : int
    device : torch.device or str
        Where the graph is drawn; the random stream of CPU and CUDA differ.

    Returns
    -------
    Tensor
        int64 [2, num_edges] on ``device``.
    """
    if num_nodes < 1 or num_edges < 0:
        raise invalid("num_nodes, num_edges", "not a graph", (num_nodes, num_edges), ">= 1, >= 0")
    a, b, c = quadrants
    generator = torch.Generator(device=device).manual_seed(seed)
    edges = torch.zeros(2, num_edges, dtype=torch.int64, device=device)
    bits = (num_nodes - 1).bit_length()
    for _ in range(bits):
        draw = torch.rand(num_edges, device=device, generator=generator)
        edges.mul_(2)
        edges[0] += draw >= a + b
        edges[1] += ((draw >= a) & (draw < a + b)) | (draw >= a + b + c)
    ids = torch.randperm(1 << bits, device=device, generator=generator)
    for end in range(2):
        edges[end] = ids[edges[end]] % num_nodes
    return edges


def uniform(num_src: int, num_dst: int, num_edges: int, *, seed: int = 0) -> torch.Tensor:
    """Bipartite multigraph with independent uniform endpoints: int64 [2, num_edges] on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(num_src, (num_edges,), generator=generator)
    dst = torch.randint(num_dst, (num_edges,), generator=generator)
    return torch.stack([src, dst])


def block_model(
    num_nodes: int,
    block: int,
    density: float,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Stochastic block model without edges between blocks: a locally dense directed graph.

    Nodes are in blocks of ``block`` consecutive ids (the last may be smaller); every pair of a
    block, a node with itself included, is an edge with probability ``density``.

    Parameters
    ----------
    num_nodes, block : int
    density : float
        0 to 1.
    seed : int
    device : torch.device or str
        Where the graph is drawn; the random stream of CPU and CUDA differ.

    Returns
    -------
    Tensor
        int64 [2, E] on ``device``, by source.
    """
    if num_nodes < 0 or block < 1 or not 0 <= density <= 1:
        got = (num_nodes, block, density)
        raise invalid("num_nodes, block, density", "not a graph", got, ">= 0, >= 1, 0 to 1")
    generator = torch.Generator(device=device).manual_seed(seed)
    draw = torch.rand(num_nodes, block, device=device, generator=generator)
    src, place = (draw < density).nonzero(as_tuple=True)
    dst = src // block * block + place
    return torch.stack([src, dst])[:, dst < num_nodes]


def grid(
    rows: int,
    columns: int,
    *,
    removed: float = 0.5,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Road-like grid: crossings of two to four roads, each road an edge both ways.

    Of a full grid, numbered row by row, roads are taken away at random; no crossing loses more
    than one road of either orientation, and those at the rim lose none, so that degrees are 2 to
    4 (with two rows and columns or more) and the graph has no tails.

    Parameters
    ----------
    rows, columns : int
    removed : float
        0 to 1: probability with which a road that may be taken away is.
    seed : int
    device : torch.device or str
        Where the graph is drawn; the random stream of CPU and CUDA differ.

    Returns
    -------
    Tensor
        int64 [2, E] on ``device``: every road one way, then all the other way.
    """
    if rows < 1 or columns < 1 or not 0 <= removed <= 1:
        got = (rows, columns, removed)
        raise invalid("rows, columns, removed", "not a grid", got, ">= 1, >= 1, 0 to 1")
    generator = torch.Generator(device=device).manual_seed(seed)
    ids = torch.arange(rows * columns, device=device).view(rows, columns)
    # Of two neighbouring crossings exactly one is even, so each has one road to lose.
    even = (ids // columns + ids % columns) % 2 == 0
    inner = torch.zeros_like(even)
    inner[1:-1, 1:-1] = True
    kept = []
    for ends in ((ids[:, :-1], ids[:, 1:]), (ids[:-1], ids[1:])):
        first, second = (end.reshape(-1) for end in ends)
        draw = torch.rand(first.numel(), device=device, generator=generator)
        may_go = even.view(-1)[first] & inner.view(-1)[first] & inner.view(-1)[second]
        stays = ~(may_go & (draw < removed))
        kept.append(torch.stack([first[stays], second[stays]]))
    one_way = torch.cat(kept, 1)
    return torch.cat([one_way, one_way.flip(0)], 1)


def shuffled(graph: GraphData, *, seed: int = 0) -> GraphData:
    """The same graph with its nodes numbered at random; edges keep their order.

    For what depends on the numbers: generated graphs come in an order that real ones rarely have.
    """
    generator = torch.Generator().manual_seed(seed)
    old = torch.randperm(graph.num_nodes, generator=generator)  # new number -> old
    new = torch.empty_like(old)
    new[old] = torch.arange(graph.num_nodes)
    new = new.to(graph.edge_index.device)

    def moved(table: torch.Tensor | None) -> torch.Tensor | None:
        return None if table is None else table[old.to(table.device)]

    return dataclasses.replace(
        graph,
        name=graph.name + SHUFFLED,
        edge_index=new[graph.edge_index],
        x=moved(graph.x),
        y=moved(graph.y),
        splits={key: mask[old.to(mask.device)] for key, mask in graph.splits.items()},
    )


def load_npz(path: str | Path) -> GraphData:
    """Read a graph from an npz file.

    The file holds ``edge_index`` [2, E] (any integer type) and, as it likes, ``num_nodes``, ``x``
    [N, F] (or its CSR parts ``x_indptr``, ``x_indices``, ``x_data``, ``x_dim``), ``y`` [N] and
    for each of train, val, test a ``*_mask`` [N] or ``*_idx``.

    Raises
    ------
    InvalidArgument
        If there is no such file, it is not an npz, or ``edge_index`` is missing or malformed.
    """
    path = Path(path)
    if not path.is_file():
        known = ", ".join((*NAMED_GRAPHS, *BLOCK_MODELS, *GRIDS))
        raise invalid("graph", "no such file", str(path), f"an npz file or one of {known}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            fields = {key: archive[key] for key in archive.files}
    except _UNREADABLE as error:
        raise invalid(
            "graph", "not an npz archive", f"{path} ({error})", "numpy.savez output"
        ) from None
    try:
        return _from_fields(path.stem, fields)
    except InvalidArgument:
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        what = f"{path} ({type(error).__name__}: {error})"
        raise invalid("graph", "fields that do not fit", what, "those of load_npz") from None


def load(name_or_path: str, *, device: torch.device | str = "cpu", seed: int = 0) -> GraphData:
    """Graph by name (of ``NAMED_GRAPHS``, ``BLOCK_MODELS``, ``GRIDS``) or from an npz file.

    Named graphs are drawn on ``device``. ``:shuffled`` behind either numbers its nodes at random
    (:func:`shuffled`, seed 0).
    """
    if name_or_path.endswith(SHUFFLED):
        plain = load(name_or_path.removesuffix(SHUFFLED), device=device, seed=seed)
        return shuffled(plain)
    if name_or_path in NAMED_GRAPHS:
        nodes, edges = NAMED_GRAPHS[name_or_path]
        return GraphData(name_or_path, rmat(nodes, edges, seed=seed, device=device), nodes)
    if name_or_path in BLOCK_MODELS:
        nodes, block, density = BLOCK_MODELS[name_or_path]
        drawn = block_model(nodes, block, density, seed=seed, device=device)
        return GraphData(name_or_path, drawn, nodes)
    if name_or_path in GRIDS:
        rows, columns = GRIDS[name_or_path]
        roads = grid(rows, columns, seed=seed, device=device)
        return GraphData(name_or_path, roads, rows * columns)
    return load_npz(name_or_path).to(device)


def sample_edges(graph: GraphData, num_edges: int, *, seed: int = 0) -> GraphData:
    """Subgraph of ``num_edges`` edges drawn without replacement, with the nodes they touch.

    Edges keep their order, nodes theirs; features, labels and masks follow their nodes.
    """
    if graph.num_edges <= num_edges:
        return graph
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(graph.num_edges, generator=generator)[:num_edges].sort().values
    edges = graph.edge_index[:, chosen.to(graph.edge_index.device)]
    nodes, compact = edges.unique(return_inverse=True)
    return dataclasses.replace(
        graph,
        edge_index=compact,
        num_nodes=int(nodes.numel()),
        x=None if graph.x is None else graph.x[nodes],
        y=None if graph.y is None else graph.y[nodes],
        splits={key: mask[nodes] for key, mask in graph.splits.items()},
    )


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
