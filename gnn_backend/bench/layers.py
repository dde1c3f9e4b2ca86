"""Whole layers of the hosts, stock and accelerated, with the time of their projections alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from gnn_backend import memory
from gnn_backend.bench import hosts, resident, samples, stock, timing
from gnn_backend.bench.environment import cpu_report, device_report, document
from gnn_backend.bench.hosts import Shape
from gnn_backend.bench.layer_cases import FAMILIES, Case, stock_bytes
from gnn_backend.datasets import GraphData, load


@dataclass(frozen=True)
class Settings:
    """Sizes and sampling of a run.

    On the CPU ``rounds`` is how often stock and accelerated are measured in turn, each in a process
    of its own that takes the median of ``repeats``; the least of them counts, as other work on the
    machine only ever adds to a time.
    """

    hosts: tuple[str, ...] = hosts.HOSTS
    layers: tuple[str, ...] = ()  # classes or forms of them; none: all
    shape: Shape = field(default_factory=Shape)
    repeats: int = 5
    rounds: int = 3
    family: str = "attention"
    device: str = "cpu"
    force_stock: bool = False

    def cases(self, host: str) -> list[Case]:
        """The layers of a host that are to be measured."""
        known = FAMILIES[self.family][host]
        return [c for c in known if not self.layers or {c.layer, c.label} & set(self.layers)]


def run(
    graphs: Sequence[str],
    settings: Settings,
    say: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None] = lambda document: None,
) -> dict[str, Any]:
    """Measure every layer on every graph.

    Parameters
    ----------
    graphs : list of str
        Names of ``datasets.NAMED_GRAPHS`` or npz files.
    settings : Settings
    say : callable
        Called with a line of progress.
    keep : callable, optional
        Called after each layer with the document so far, so that a run that is cut off has it.

    Returns
    -------
    dict
        The JSON document that ``bench show`` reads; times of forward and backward together.
    """
    gpu = settings.device == "cuda"
    rows: list[dict[str, Any]] = []
    report = device_report() if gpu else cpu_report()
    found_so_far = {**document("layers", asdict(settings), report), "layers": rows}
    for name in graphs:
        data = load(name, device=settings.device)
        for host in settings.hosts:
            for case in settings.cases(host):
                say(f"{name} {host} {case.label}")
                found = _on_gpu(data, host, case, settings) if gpu else _on_cpu(
                    name, data, host, case, settings
                )  # fmt: skip
                rows.append(_row(data, host, case, found))
                keep(found_so_far)
                if gpu:
                    gc.collect()
                    torch.cuda.empty_cache()
    return found_so_far


def _row(data: GraphData, host: str, case: Case, found: dict[str, Any]) -> dict[str, Any]:
    stock_ms, ours_ms = (found["ms"][side] for side in ("stock", "backend"))
    return {
        "graph": data.name,
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "host": host,
        "layer": case.label,
        **found,
        "speed": stock_ms / ours_ms if stock_ms and ours_ms else None,
    }


def _on_cpu(
    name: str, data: GraphData, host: str, case: Case, settings: Settings
) -> dict[str, Any]:
    """Both sides in processes of their own, in turn; the best of each."""
    found: dict[bool, list[resident.Measurement]] = {False: [], True: []}
    for _ in range(settings.rounds):
        for accelerated, measured in found.items():
            request = resident.Request(
                host, case.layer, name, accelerated, settings.shape, options=case.options,
                without=case.without, repeats=settings.repeats,
            )  # fmt: skip
            measured.append(resident.measure(request, GNN_BACKEND_CPU_TARGET="numba"))
    sides = {"stock": found[False], "backend": found[True]}
    return {
        "ms": {side: min(m.forward_backward_ms for m in all_) for side, all_ in sides.items()},
        "forward_ms": {side: min(m.forward_ms for m in all_) for side, all_ in sides.items()},
        "peak_bytes": {side: all_[0].peak_bytes for side, all_ in sides.items()},
        "projections_ms": _projections_ms(host, case, data, settings),
    }


def _on_gpu(data: GraphData, host: str, case: Case, settings: Settings) -> dict[str, Any]:
    """Both sides in this process, eager; stock where it is to fit."""
    from gnn_backend import enabled

    request = _request(host, case, data, settings)
    made = samples.sample(request)
    forward, both = (resident.step(made, backward) for backward in (False, True))

    def step(backward: bool) -> None:
        (both if backward else forward)()

    counts = min(timing.INNER, 5), settings.repeats
    with enabled(hosts=[host]):
        ours = stock.measured(step, "cuda", *counts)
    needed = stock_bytes(case, data.num_edges + data.num_nodes, settings.shape, 4)
    free = memory.available_bytes("cuda")
    if free is not None and needed > free and not settings.force_stock:
        theirs: Any = stock.out_of_memory(needed)
    else:
        theirs = stock.measured(step, "cuda", *counts)
    sides = {"stock": theirs, "backend": ours}
    return {
        **{
            key: {side: None if isinstance(m, str) else m[of] for side, m in sides.items()}
            for key, of in (
                ("ms", "forward_backward_ms"), ("forward_ms", "forward_ms"),
                ("peak_bytes", "peak_bytes"),
            )
        },
        "notes": {side: m for side, m in sides.items() if isinstance(m, str)},
        "projections_ms": None,
    }  # fmt: skip


def _request(host: str, case: Case, data: GraphData, settings: Settings) -> samples.Request:
    return samples.Request(
        host, case.layer, data, settings.shape, settings.device, options=case.options,
        without=case.without,
    )  # fmt: skip


def _projections_ms(host: str, case: Case, data: GraphData, settings: Settings) -> float:
    """Forward and backward of the products of node features and weights, and nothing else."""
    made = samples.sample(_request(host, case, data, settings))
    x = hosts.features(data, settings.shape, "cpu", torch.float32)
    weights = [
        module.weight
        for name, module in made.layer.named_modules()
        if "edge" not in name and _is_projection(module, x.shape[1])
    ]
    if not weights:
        return 0.0

    def products() -> None:
        for weight in weights:
            out = nn.functional.linear(x, weight)
            torch.autograd.grad(out, (x, weight), torch.ones_like(out))

    rounds = (
        timing.eager_ms(products, "cpu", repeats=settings.repeats) for _ in range(settings.rounds)
    )
    return min(rounds)


def _is_projection(module: nn.Module, width: int) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, nn.Parameter) and weight.dim() == 2 and weight.shape[1] == width
