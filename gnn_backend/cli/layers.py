"""``layers``: every convolution of the installed hosts and whether it is accelerated.

A status other than ``stock`` is never written by hand: the layer is run on a small graph, its
kernel launches are counted and its result is compared with the stock layer's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnn_backend.cli import output

if TYPE_CHECKING:
    from gnn_backend.bench.hosts import Shape

DEVICES = ("cpu", "cuda", "emulator")
_TOLERANCE = 2e-5
_EDGES = 80

# Constructor and forward arguments for which a layer might fall back; each is tried where the
# layer has it.
_OPTIONS: tuple[dict[str, Any], ...] = (
    {"dropout": 0.5},
    {"attn_drop": 0.5},
)
_CALL_OPTIONS = ("return_attention_weights", "get_attention")


def layers(
    host: Annotated[str | None, typer.Option(help="dgl or pyg; default: both.")] = None,
    device: Annotated[str, typer.Option(help="Where layers are tried: cpu, cuda, emulator.")] = (
        "cpu"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list on stdout.")] = False,
) -> None:
    """List the hosts' convolutions: fused, kernels, traced or stock, and why."""
    from gnn_backend.patching import registry

    output.check_choice("--device", device, DEVICES)
    if host is not None:
        output.check_choice("--host", host, registry.hosts)
    from gnn_backend.bench import hosts

    names = registry.hosts if host is None else (host,)
    rows = [row for name in names if hosts.installed(name) for row in report(name, device)]
    if as_json:
        output.print_json(rows)
    else:
        _show(rows)


def report(host: str, device: str = "cpu") -> list[dict[str, Any]]:
    """host, symbol, status and reasons of every convolution class of one host.

    ``status`` is ``fused`` if the layer's own forward ran on our kernels and matched stock, and
    ``stock`` otherwise. ``reasons`` tells why a layer is stock, and for which options a fused
    one falls back.
    """
    from gnn_backend.bench import hosts
    from gnn_backend.patching import registry

    patched = {patch.symbol for patch in registry.known()}
    rows = []
    for name, cls in hosts.conv_classes(host).items():
        symbol = f"{host}.{name}"
        status, reasons = "stock", ["no-kernel"]
        if symbol in patched:
            status, reasons = _try(host, cls, device)
        rows.append({"host": host, "symbol": symbol, "status": status, "reasons": reasons})
    return rows


def _try(host: str, cls: type, device: str) -> tuple[str, list[str]]:
    """Run one layer stock and accelerated; say what came of it."""
    import gnn_backend
    from gnn_backend import config
    from gnn_backend.bench.hosts import Shape

    target = "emulator" if device == "emulator" else "numba"
    try:
        module, arguments = _layer_and_arguments(host, cls, Shape(8, 4, 2), device)
        with config.override(cpu_target=target):
            found = gnn_backend.compare(module, *arguments, repeats=1)
    except Exception as error:  # whatever stops a layer is the reason
        return "stock", [f"not run: {type(error).__name__}: {str(error).splitlines()[0]}"]
    if not found.accelerated or not found.launches:
        return "stock", [found.reason or "no kernel was launched"]
    worst = max(found.max_rel_error, key=lambda name: found.max_rel_error[name])
    if not found.max_rel_error[worst] <= _TOLERANCE:
        return "stock", [f"differs from stock: {worst} by {found.max_rel_error[worst]:.1e}"]
    return "fused", _fallbacks(host, cls, device)


def _layer_and_arguments(
    host: str, cls: type, shape: Shape, device: str, **options: Any
) -> tuple[Any, tuple[Any, ...]]:
    import torch

    from gnn_backend.bench import hosts
    from gnn_backend.datasets import GraphData, uniform

    place = "cuda" if device == "cuda" else "cpu"
    data = GraphData("built-in", uniform(20, 20, _EDGES), 20).to(place)
    module = hosts.build_on(cls, shape, place, torch.float32, **options)
    x = hosts.features(data, shape, place, torch.float32)
    return module, hosts.arguments(host, data, x)


def _edge_features(device: str, width: int) -> Any:
    import torch

    place = "cuda" if device == "cuda" else "cpu"
    return torch.randn(_EDGES, width, device=place)


def _fallbacks(host: str, cls: type, device: str) -> list[str]:
    """Reason codes of the options that make a layer fall back, as a dry run gives them."""
    import inspect

    import gnn_backend
    from gnn_backend.bench.hosts import Shape

    constructor = inspect.signature(cls).parameters
    forward = inspect.signature(cls.forward).parameters  # type: ignore[attr-defined]
    tries: list[tuple[dict[str, Any], dict[str, Any]]] = []
    tries += [(options, {}) for options in _OPTIONS if options.keys() <= constructor.keys()]
    tries += [({}, {name: True}) for name in _CALL_OPTIONS if name in forward]
    if "edge_dim" in constructor and "edge_attr" in forward:
        tries.append(({"edge_dim": 3}, {"edge_attr": _edge_features(device, 3)}))
    codes: dict[str, None] = {}
    for options, call_options in tries:
        module, arguments = _layer_and_arguments(host, cls, Shape(8, 4, 2), device, **options)
        explained = gnn_backend.explain(module, *arguments, **call_options)
        codes |= dict.fromkeys(r.reason for r in explained.layers if r.reason is not None)
    return list(codes)


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("layer", "status", "reasons", title=f"{len(rows)} convolutions")
    for row in sorted(rows, key=lambda row: row["status"] == "stock"):
        mark = row["status"] if row["status"] == "stock" else f"[green]{row['status']}[/]"
        table.add_row(row["symbol"], mark, ", ".join(row["reasons"]))
    output.console().print(table)
