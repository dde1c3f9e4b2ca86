"""Which runs the demonstration makes, one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from gnn_backend.bench import hosts, resident
from gnn_backend.demo import training
from gnn_backend.demo.results import Layer, Results, Training

_INSTALL = {"dgl": "pip install\n'gnn_backend[dgl]'", "pyg": "pip install\n'gnn_backend[pyg]'"}
_LAYER = "GATv2Conv"
_LAYER_REPEATS = 3


@dataclasses.dataclass(frozen=True)
class Settings:
    """Where the examples are and how long to train them.

    ``device`` is where the scripts train (None: a GPU if there is one). Stock DGL trains on the CPU
    where its build knows no other device.
    """

    examples: Path
    cora_epochs: int = 100
    tolokers_epochs: int = 10
    seed: int = 0
    device: str | None = None
    layers: bool = True


@dataclasses.dataclass(frozen=True)
class _Example:
    host: str
    title: str
    script: str
    epochs: int
    device: str
    stock_device: str


def run(settings: Settings, say: Callable[[str], None]) -> Results:
    """Make all runs; ``say`` is called with a line of progress before each."""
    results = Results()
    for example in _examples(settings):
        if hosts.installed(example.host):
            results.trainings.append(_train(example, settings, say))
        else:
            results.missing[example.title] = _INSTALL[example.host]
    if settings.layers:
        for host in hosts.HOSTS:
            if hosts.installed(host):
                results.layers.append(_layer(host, settings, say))
    return results


def _examples(settings: Settings) -> tuple[_Example, ...]:
    device = settings.device or _best_device()
    dgl = _dgl_devices(device) if hosts.installed("dgl") else (device, device)
    cora, tolokers = settings.cora_epochs, settings.tolokers_epochs
    return (
        _Example("dgl", "DGL GATv2, Cora", "dgl_gatv2_cora.py", cora, *dgl),
        _Example("pyg", "PyG GATv2, Tolokers", "pyg_gatv2_tolokers.py", tolokers, device, device),
    )


def _dgl_devices(device: str) -> tuple[str, str]:
    """Where the DGL script trains accelerated, and where stock."""
    if device == "cpu":
        return device, device
    import dgl  # noqa: F401 (what it can do is asked once it is imported)

    from gnn_backend.adapters.dgl.residence import support

    if support.has_cuda_build():
        return device, device
    return ("cpu" if support.why_not() else device), "cpu"


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _train(example: _Example, settings: Settings, say: Callable[[str], None]) -> Training:
    script = str(settings.examples / example.script)
    arguments = ("--epochs", str(example.epochs), "--seed", str(settings.seed))
    outcomes = []
    for accelerate, device in ((False, example.stock_device), (True, example.device)):
        variant = "accelerated" if accelerate else "stock"
        say(f"{example.script}: {example.epochs} epochs on {device}, {variant}")
        request = training.Request(script, accelerate, arguments, device)
        outcomes.append(training.train(request))
    stock, ours = outcomes
    return Training(example.title, example.device, stock, ours, example.stock_device)


def _layer(host: str, settings: Settings, say: Callable[[str], None]) -> Layer:
    graph = str(settings.examples / "data" / "tolokers.npz")
    measured = []
    for backend in (False, True):
        variant = "accelerated" if backend else "stock"
        say(f"{host} {_LAYER}, 128 to 64, 2 heads, on Tolokers, cpu, {variant}")
        request = resident.Request(host, _LAYER, graph, backend, repeats=_LAYER_REPEATS)
        measured.append(resident.measure(request))
    name = {"dgl": "DGL", "pyg": "PyG"}[host]
    return Layer(f"{name} layer, Tolokers", "128 to 2 x 64", measured[0], measured[1])
