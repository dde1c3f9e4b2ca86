"""What choosing by the model costs: time lost against the best choice there was, and the fit.

Regret of a choice is its time over that of the fastest deterministic one, less 1.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnn_backend.bench.paths import CASES
from gnn_backend.runtime.sparse import model
from gnn_backend.runtime.sparse.model import CHUNKS, CUSPARSE, ROWS, TILES, Work
from gnn_backend.runtime.sparse.selection import worth_asking

#: Constants of a model that knows nothing: rows, at the task length of the operators.
UNFITTED: dict[str, Any] = {"source": "", "chunks": {}, "paths": {}}
_FULL_TASKS = [round(250 * 1.1**step) for step in range(62)]
_WHOLE_ROWS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
_LEAST, _MOST = (32, 64, 128), (128, 256, 512, 1024)
_WORST_WEIGHT = 0.5  # of the largest regret beside the mean, when task lengths are fitted
_STEPS, _SMALL_STEP = 5000, 1e-9


class Measured(NamedTuple):
    """The times of one pass on one graph."""

    graph: str
    dtype: str
    width: int
    case: str
    family: str
    work: Work
    times: dict[str, float]

    @property
    def kind(self) -> str:
        """Under which its constants are kept."""
        return model.kind(self.family, self.work.itemsize)

    @property
    def paths(self) -> list[str]:
        """Paths that were timed."""
        return [ROWS, TILES] if TILES in self.times else [ROWS]


class Regret(NamedTuple):
    """What was chosen, what was best, and the time lost."""

    measured: Measured
    chosen: str
    best: str
    regret: float


def measured(documents: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """The passes of results of ``bench spmm --paths``."""
    found = []
    for document in documents:
        for row in document["graphs"]:
            item = getattr(torch, row["dtype"]).itemsize
            for case, times in row["times"].items():
                direction, nodes = CASES[case].direction, row["num_nodes"]
                tiles = row["tiles"][direction]
                work = Work(row["num_edges"], nodes, nodes, row["width"], item, tiles)
                kept = {name: ms for name, ms in times.items() if ms and name != CUSPARSE}
                found.append(
                    Measured(
                        row["graph"], row["dtype"], row["width"], case, CASES[case].family, work,
                        kept,
                    )
                )  # fmt: skip
    return found


def judge(passes: Iterable[Measured], constants: Mapping[str, Any]) -> list[Regret]:
    """The regret of every pass under these constants."""
    return [_judged(one, constants) for one in passes]


def _judged(one: Measured, constants: Mapping[str, Any]) -> Regret:
    open_paths = tuple(worth_asking(one.work.num_edges, one.paths))
    found = model.predict(one.family, one.work, open_paths, constants)
    chosen = f"rows {found.chunk}" if found.path == ROWS else found.path
    best = min(one.times, key=lambda name: one.times[name])
    # A task length that ran out of memory, or was not measured, counts as the worst.
    time = one.times.get(chosen, max(one.times.values()))
    return Regret(one, chosen, best, time / one.times[best] - 1)


def summary(regrets: Iterable[Regret]) -> dict[str, float]:
    """Median and largest regret, and how many passes there are."""
    values = [one.regret for one in regrets]
    return {"median": statistics.median(values), "worst": max(values), "count": len(values)}


def held_out(passes: list[Measured]) -> list[Regret]:
    """The regret on each graph under constants that were fitted without it."""
    found = []
    for graph in dict.fromkeys(one.graph for one in passes):
        others = [one for one in passes if one.graph != graph]
        if others:
            mine = (one for one in passes if one.graph == graph)
            found += judge(mine, fit(others, "without " + graph))
    return found


def fit(passes: list[Measured], source: str) -> dict[str, Any]:
    """Constants of :mod:`gnn_backend.runtime.sparse.model` for these passes.

    Task lengths are those of a grid with the least mean regret, and a share of the largest. Paths
    get coefficients of the least relative squares, none negative; a path that was fastest nowhere,
    by the margin that it has to win by, gets none, so that nobody asks for it.
    """
    constants: dict[str, Any] = {"source": source, "chunks": {}, "paths": {}}
    for kind in dict.fromkeys(one.kind for one in passes):
        mine = [one for one in passes if one.kind == kind]
        chunks = _fitted_chunks(mine)
        constants["chunks"][kind] = list(chunks)
        # What ran out of memory is beaten by everything, and says nothing about its time.
        rows = [one.times.get(f"rows {_length(one, *chunks)}", math.inf) for one in mine]
        timed = [(one, t) for one, t in zip(mine, rows, strict=True) if TILES in one.times]
        if any(one.times[TILES] * model.MARGIN < t for one, t in timed):
            constants["paths"][kind] = {
                ROWS: _coefficients(ROWS, [(o.work, t, _weight(o, t)) for o, t in timed]),
                TILES: _coefficients(
                    TILES, [(o.work, o.times[TILES], _weight(o, t)) for o, t in timed]
                ),
            }
    return constants


def _weight(one: Measured, rows: float) -> float:
    """How much a time matters: most where both paths take as long, so that errors decide."""
    ratio = one.times[TILES] / rows
    return min(ratio, 1 / ratio) ** 2


def _length(one: Measured, *constants: int) -> int:
    work = one.work
    return model.longest(work.num_edges, work.row_bytes, *constants)


def _fitted_chunks(passes: list[Measured]) -> tuple[int, ...]:
    """``full_tasks``, ``whole_row``, ``least`` and ``most`` of the least regret among rows."""
    best, cost = model.DEFAULT_CHUNKS, math.inf
    for least, most in itertools.product(_LEAST, _MOST):
        lost = torch.stack([_lost(one, least, most) for one in passes])
        costs = lost.mean(0) + _WORST_WEIGHT * lost.amax(0)
        place = int(costs.argmin())
        if float(costs.view(-1)[place]) < cost:
            cost = float(costs.view(-1)[place])
            full, whole = divmod(place, len(_WHOLE_ROWS))
            best = (_FULL_TASKS[full], _WHOLE_ROWS[whole], least, most)
    return best


def _lost(one: Measured, least: int, most: int) -> Tensor:
    """Regret among rows for all ``full_tasks`` and ``whole_row``: ``model.longest`` of a grid."""
    times = {chunk: one.times.get(f"rows {chunk}", math.inf) for chunk in CHUNKS}
    fastest = min(times.values())
    full, whole = torch.tensor(_FULL_TASKS)[:, None], torch.tensor(_WHOLE_ROWS)[None, :]
    work = one.work.num_edges * whole.clamp(max=one.work.row_bytes) // whole
    lost = torch.full((len(full), whole.shape[1]), times[least] / fastest - 1, dtype=torch.float64)
    for length in CHUNKS:
        if least < length <= most:
            lost[work >= length * full] = times[length] / fastest - 1
    return lost


def _coefficients(path: str, timed: list[tuple[Work, float, float]]) -> list[float]:
    """Coefficients of a path's terms: weighted least squares of the relative error, none negative.

    ``timed``: work, milliseconds and weight of each pass.
    """
    terms = torch.tensor([work.terms(path) for work, _, _ in timed], dtype=torch.float64)
    times, weights = torch.tensor([own[1:] for own in timed], dtype=torch.float64).T
    scaled = terms / times[:, None] * weights[:, None]
    size = scaled.norm(dim=0).clamp(min=1e-30)
    scaled = scaled / size
    gram, target = (scaled.T @ scaled).tolist(), (scaled.T @ weights).tolist()
    found = [0.0] * len(target)
    for _ in range(_STEPS):  # one coefficient after the other, each at its best for the rest
        largest = 0.0
        for k, row in enumerate(gram):
            rest = target[k] - sum(g * f for g, f in zip(row, found, strict=True))
            best = max(0.0, found[k] + rest / row[k]) if row[k] else 0.0
            largest, found[k] = max(largest, abs(best - found[k])), best
        if largest < _SMALL_STEP:
            break
    return [float(f"{value / own:.4g}") for value, own in zip(found, size.tolist(), strict=True)]
