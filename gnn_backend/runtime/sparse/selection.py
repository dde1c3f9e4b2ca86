"""Which way a reduction goes, and how long its tasks are: one choice for every family.

Sums and means, with or without weights, go over rows (the traversal), through cuSPARSE, or over
tiles on tensor cores; extremes and several reductions in one pass go over rows. What is
configured decides; else what was measured, with ``config.autotune``; else the model of
:mod:`gnn_backend.runtime.sparse.model`, whose constants are fitted to measurements. cuSPARSE has to
be asked for, since its bits differ from run to run.

A choice is made once a graph and form, and kept with the graph. It needs the numbers of nodes and
edges alone; where tiles could win, also an estimate of their number (one device-to-host copy).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch

from gnn_backend.config import get_config
from gnn_backend.graph import Graph
from gnn_backend.graph.graph import Direction
from gnn_backend.runtime import autotune, block_sparse
from gnn_backend.runtime.block_choice import MIN_EDGES
from gnn_backend.runtime.sparse import cusparse, model, rows, tile_sums
from gnn_backend.runtime.sparse.model import CUSPARSE, ROWS, TILES, Work

if TYPE_CHECKING:
    from gnn_backend.runtime.device import DeviceEngine

Run = TypeVar("Run")
LINEAR = ("sum", "weighted")  # families that have more paths than rows
_CODES = {TILES: 2}  # beside task lengths, in what is remembered on disk


class Form(NamedTuple):
    """What is chosen for alike on one graph.

    Attributes
    ----------
    family : str
        One of ``model.FAMILIES``.
    reduce : str
        The reductions, for people; of sums ``sum`` or ``mean``.
    dtype : torch.dtype
    heads, dim : int
    values_an_edge : int
        Values of its own that an edge brings, 0 if none.
    """

    family: str
    reduce: str
    dtype: torch.dtype
    heads: int
    dim: int
    values_an_edge: int = 0

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self.heads * self.dim


class Choice(NamedTuple):
    """A path, the edges a task of rows, and why."""

    path: str
    chunk: int
    why: str

    def describe(self, form: Form, direction: Direction) -> str:
        """What a pass runs with, for people."""
        way = self.path
        if self.path == ROWS:
            way = f"rows, at most {self.chunk} neighbours a task"
        weighted = " weighted" if form.values_an_edge else ""
        side = "" if direction == "dst" else " by source"
        return f"{form.reduce}{weighted}{side}: {way} ({self.why})"


class Settled(Generic[Run]):
    """A pass as it was chosen, which later calls of its form take while the settings last.

    Parameters
    ----------
    run : object
        What computes it. It must not hold the graph, which holds it.
    choice : Choice or None
        None where there was none.
    form : Form
    direction : {"dst", "src"}
    """

    __slots__ = ("_choice", "_direction", "_form", "_revision", "_tf32", "run")

    def __init__(self, run: Run, choice: Choice | None, form: Form, direction: Direction) -> None:
        self.run = run
        self._choice, self._form, self._direction = choice, form, direction
        self._revision = get_config().revision
        self._tf32 = block_sparse.allows_tf32() if _asks_tf32(form) else None

    def holds(self) -> bool:
        """Whether the settings are those that it was chosen by."""
        if self._revision != get_config().revision:
            return False
        return self._tf32 is None or self._tf32 == block_sparse.allows_tf32()

    def keep(self, graph: Graph, key: Any) -> None:
        """Keep it with the graph, unless a CUDA graph is captured, when nothing can be asked."""
        if graph.device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            graph.plans[key] = self

    def describe(self) -> str:
        """What it runs with, for people."""
        if self._choice is None:
            return f"{self._form.reduce}: rows"
        return self._choice.describe(self._form, self._direction)


def family_of(reductions: Iterable[str], values_an_edge: int) -> str:
    """The family of a pass."""
    names = tuple(reductions)
    if len(names) == 1 and names[0] in ("sum", "mean"):
        return "weighted" if values_an_edge else "sum"
    return "extreme" if len(names) == 1 and names[0] in ("max", "min") else "several"


def cannot(graph: Graph, path: str, form: Form) -> str | None:
    """Why a path is closed to a form; None if it is open."""
    if path == ROWS:
        return None
    if form.family not in LINEAR:
        return f"{path} have sums and means alone"
    if path == CUSPARSE:
        return cusparse.cannot(graph, form.dtype, form.width, form.reduce, form.values_an_edge)
    return tile_sums.cannot(form.dtype, form.heads, form.dim, form.values_an_edge)


def choose(
    engine: DeviceEngine,
    graph: Graph,
    direction: Direction,
    form: Form,
    run: Callable[[Choice], object],
) -> Choice:
    """The choice for a pass over the rows of ``direction``.

    Parameters
    ----------
    engine : DeviceEngine
    graph : Graph
    direction : {"dst", "src"}
    form : Form
    run : callable (Choice) -> object
        The pass, for measuring; with ``config.autotune`` the first pass of a form runs it with
        every choice there is, unless a CUDA graph is captured.
    """
    config = get_config()
    setting = config.aggregation_path if form.family in LINEAR else "auto"
    key = _key(direction, form, setting)
    found: Choice | None = graph.plans.get(key)
    if found is not None:
        return found
    capturing = engine.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if config.autotune and graph.num_edges and setting == "auto" and not capturing:
        chosen = _measured(engine, graph, direction, form, run)
    else:
        chosen = fitted(graph, direction, form, setting, may_wait=not capturing)
    if not capturing:  # what was chosen without asking the device is not to last
        graph.plans[key] = chosen
    return chosen


def keep(graph: Graph, direction: Direction, form: Form, choice: Choice) -> None:
    """Have passes of a form take a choice on this graph, where no path is configured.

    Of float32 while ``config.autotune`` and what torch allows as tf32 stay as they are.
    """
    graph.plans[_key(direction, form, "auto")] = choice
    for key in [key for key, kept in graph.plans.items() if isinstance(kept, Settled)]:
        del graph.plans[key]


def _key(direction: Direction, form: Form, setting: str) -> tuple[object, ...]:
    tf32 = _asks_tf32(form) and block_sparse.allows_tf32()
    return ("choice", direction, form, setting, tf32)


def _asks_tf32(form: Form) -> bool:
    """Whether a choice depends on what torch allows as tf32; asking takes two microseconds."""
    if form.dtype != torch.float32 or form.family not in LINEAR:
        return False
    config = get_config()
    configured = config.aggregation_path == TILES or config.autotune
    return configured or TILES in model.compared(form.family, 4)


def fitted(
    graph: Graph, direction: Direction, form: Form, setting: str = "auto", may_wait: bool = True
) -> Choice:
    """The choice of the model, or of the setting where that is a path.

    ``may_wait``: for the number of tiles, which has to be copied from the device.
    """
    size, item = form.width * form.dtype.itemsize, form.dtype.itemsize
    chunk = rows.chunk_of(graph.num_edges, size, form.family, item)
    if setting != "auto":
        reason = cannot(graph, setting, form)
        if reason is None:
            return Choice(setting, chunk, f"aggregation_path is {setting!r}")
        return Choice(ROWS, chunk, f"not {setting}: {reason}")
    if form.family not in LINEAR:
        return Choice(ROWS, chunk, "the number of edges")
    # Of paths that nothing is known about nothing is asked.
    known = worth_asking(
        graph.num_edges,
        (p for p in model.compared(form.family, item) if cannot(graph, p, form) is None),
    )
    if not may_wait and TILES in known:
        known.remove(TILES)
    found = model.predict(
        form.family, work_of(graph, direction, form, TILES in known), tuple(known)
    )
    if len(found.milliseconds) < 2:
        return Choice(ROWS, chunk, "the number of edges")
    times = ", ".join(f"{path} {time:.3g} ms" for path, time in found.milliseconds.items())
    return Choice(found.path, chunk, f"predicted: {times}")


def worth_asking(num_edges: int, paths: Iterable[str]) -> list[str]:
    """Paths without tiles where these would not be worth building."""
    return [path for path in paths if path != TILES or num_edges >= MIN_EDGES]


def work_of(graph: Graph, direction: Direction, form: Form, tiles: bool) -> Work:
    """What the model is told of a pass."""
    sizes = graph.num_dst, graph.num_src
    num_rows, num_columns = sizes if direction == "dst" else sizes[::-1]
    counted = graph.block_stats(direction).num_tiles if tiles else None
    item = form.dtype.itemsize
    return Work(graph.num_edges, num_rows, num_columns, form.width, item, counted)


def candidates(graph: Graph, form: Form) -> list[Choice]:
    """Every choice that could be taken without being asked for."""
    lengths = [Choice(ROWS, chunk, "measured") for chunk in model.CHUNKS]
    tiles = [Choice(TILES, 0, "measured")] if cannot(graph, TILES, form) is None else []
    return lengths + tiles


def _measured(
    engine: DeviceEngine, graph: Graph, direction: Direction, form: Form,
    run: Callable[[Choice], object],
) -> Choice:  # fmt: skip
    """The fastest choice, measured here or on a graph of the same class."""
    coded = {_CODES.get(c.path, c.chunk): c for c in candidates(graph, form)}
    default = fitted(graph, direction, form)
    device = "emulator" if engine.emulated else torch.cuda.get_device_name(engine.device)
    shape = f"{form.heads}x{form.dim}" if form.values_an_edge > 1 else f"{form.width}"
    name = (
        f"{form.reduce}-{form.family}-{direction}-{str(form.dtype)[6:]}-{shape}"
        f"-{autotune.graph_class(graph)}"
    )

    def measure(code: int) -> float:
        return autotune.milliseconds(lambda: run(coded[code]), engine.device)

    code = autotune.best(device, name, coded, measure, _CODES.get(default.path, default.chunk))
    # What another graph of the class could take may be closed to this one.
    return coded.get(code, default)
