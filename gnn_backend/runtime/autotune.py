"""Measured choices in place of fitted ones, remembered on disk.

The defaults of :mod:`gnn_backend.runtime.selection` were fitted to measurements on a few graphs.
With ``config.autotune`` the first call on a graph measures the candidates instead, and the winner
is kept for every graph of the same class: same device, kernel, lane layout, and the same sizes and
degrees to within a factor of two.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from filelock import FileLock

from gnn_backend.config import get_config
from gnn_backend.graph import Graph
from gnn_backend.runtime.cache import writable_folder

PART = "tuning"  # the folder below the cache directory
_WARMUP, _SAMPLES = 1, 5
_REPLAYED = 10  # calls in a CUDA graph
_MARGIN = 1.02
_log = logging.getLogger(__name__)
_lock = threading.Lock()
_known: dict[Path, dict[str, int]] = {}
_files: dict[tuple[Path, str], Path] = {}  # by cache directory and device: finding one writes


def graph_class(graph: Graph) -> str:
    """The class of a graph: edges, rows and in-degrees (mean, largest) as powers of two.

    Reads the degree statistics, which wait for the device once a graph.
    """
    stats = graph.stats("dst")
    sizes = {
        "e": graph.num_edges,
        "s": graph.num_src,
        "d": graph.num_dst,
        "mean": stats.mean,
        "max": stats.maximum,
    }
    return "-".join(f"{name}{round(math.log2(max(1, value)))}" for name, value in sizes.items())


def best(
    device: str,
    key: str,
    candidates: Iterable[int],
    measure: Callable[[int], float],
    default: int | None = None,
) -> int:
    """The candidate that ``measure`` finds fastest, or what an earlier call found.

    Parameters
    ----------
    device : str
        Name of the device, one file each.
    key : str
        Kernel, layout and graph class.
    candidates : iterable of int
    measure : callable (candidate) -> float
        Milliseconds; not called where the key is known.
    default : int, optional
        The candidate that another has to beat by more than a measurement varies.
    """
    file = _file(device)
    with _lock:
        found = _read(file).get(key)
        if found is not None:
            return found
    times = {candidate: measure(candidate) for candidate in candidates}
    choice = min(times, key=lambda candidate: times[candidate])
    if default in times and times[default] <= times[choice] * _MARGIN:
        choice = default
    _log.info("autotune: %s on %s: %s, of %s ms", key, device, choice, times)
    _remember(file, key, choice)
    return choice


def known(device: str, key: str) -> int | None:
    """What was found for a key, without measuring."""
    with _lock:
        return _read(_file(device)).get(key)


def milliseconds(call: Callable[[], object], device: torch.device) -> float:
    """Median milliseconds of a call; on CUDA the device's alone, by replay of a CUDA graph."""
    if device.type == "cuda":
        return _replayed(call, device)
    samples = []
    for index in range(_WARMUP + _SAMPLES):
        start = time.perf_counter()
        call()
        if index >= _WARMUP:
            samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples)


def _replayed(call: Callable[[], object], device: torch.device) -> float:
    """What the host takes to launch small kernels would hide their differences.

    Other threads may use CUDA meanwhile, as those that pin batches of a loader do.
    """
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    with torch.cuda.device(device):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(_REPLAYED):
                call()
        samples = []
        for index in range(_WARMUP + _SAMPLES):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if index >= _WARMUP:
                samples.append(start.elapsed_time(end) / _REPLAYED)
    return statistics.median(samples)


def _file(device: str) -> Path:
    key = get_config().cache_dir, device
    if key not in _files:
        name = "".join(c if c.isalnum() else "-" for c in device)
        _files[key] = writable_folder(PART) / f"{name}.json"
    return _files[key]


def _read(file: Path) -> dict[str, int]:
    """Choices of this process and, the first time, those on disk. A damaged file counts as none."""
    if file not in _known:
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            _known[file] = {str(key): int(choice) for key, choice in stored.items()}
        except FileNotFoundError:
            _known[file] = {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            _log.warning("autotune: %s is not readable (%s); measuring anew", file, error)
            _known[file] = {}
    return _known[file]


def _remember(file: Path, key: str, choice: int) -> None:
    """Keep a choice, beside what other processes have written meanwhile."""
    with _lock, FileLock(f"{file}.lock"):
        mine = _known.pop(file, {})
        merged = {**mine, **_read(file), key: choice}
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        temporary.replace(file)
        _known[file] = merged
