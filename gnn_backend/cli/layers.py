"""``layers``: every layer of the installed hosts and whether it is accelerated.

A status other than ``stock`` is never written by hand: the layer is run on a small graph, its
kernel launches are counted and its result is compared with the stock layer's.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnn_backend.cli import output

if TYPE_CHECKING:
    from gnn_backend.bench.samples import Request
    from gnn_backend.compare import Sample

OWN = "gnn_backend"  # in the place of a host
DEVICES = ("cpu", "cuda", "emulator")
_TOLERANCE = 2e-5
_NODES, _EDGES = 20, 80

# Constructor and forward arguments for which a layer might fall back; each is tried where the
# layer has it.
_OPTIONS: tuple[dict[str, Any], ...] = (
    {"dropout": 0.5},
    {"attn_drop": 0.5},
)
_CALL_OPTIONS = ("return_attention_weights", "get_attention")


def layers(
    host: Annotated[
        str | None,
        typer.Option(help="dgl, pyg, or gnn_backend for the layers of its own; default: all."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where layers are tried: cpu, cuda, emulator.")] = (
        "cpu"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list on stdout.")] = False,
) -> None:
    """List the hosts' layers and operators: fused, kernels, products or stock, and why."""
    from gnn_backend.patching import registry

    output.check_choice("--device", device, DEVICES)
    known = (*registry.layer_hosts, OWN)
    if host is not None:
        output.check_choice("--host", host, known)
    from gnn_backend.bench import hosts

    names = [name for name in known if host in (None, name)]
    present = [name for name in names if name == OWN or hosts.installed(name)]
    rows = [row for name in present for row in report(name, device)]
    if as_json:
        output.print_json(rows)
    else:
        _show(rows)


def report(host: str, device: str = "cpu") -> list[dict[str, Any]]:
    """host, symbol, status and reasons of every layer of one host, and of its operators.

    ``gnn_backend`` in the place of a host stands for our own layers, which plain torch judges.

    ``status`` is ``fused`` if the layer's own forward ran on our kernels, ``kernels`` if operators
    or layers that it calls did, ``products`` if those are typed matrix products alone, which are
    torch's (grouped) ones, each only if the result matched stock, and ``stock`` otherwise.
    ``reasons`` tells why a layer is stock or in part stock, and for which options a fused one
    falls back.
    """
    rows = []
    with warnings.catch_warnings():  # a host's about its own code; nobody chose these layers
        warnings.filterwarnings("ignore", module=r"(dgl|torch_geometric)\.")
        for name, untried in _names(host).items():
            status, reasons = ("stock", untried) if untried else _try(host, name, device)
            rows.append(
                {"host": host, "symbol": f"{host}.{name}", "status": status, "reasons": reasons}
            )
    return rows


def _names(host: str) -> dict[str, list[str]]:
    """Layers and operators of a host, each with the reasons not to try it, mostly none."""
    from gnn_backend.bench import hosts
    from gnn_backend.patching import registry

    if host == OWN:
        from gnn_backend.bench import own_layers

        return {name: [] for name in own_layers.NAMES}
    classes = hosts.layer_classes(host)
    patches = [patch for patch in registry.known() if patch.host == host]
    if host != "dgl":
        from gnn_backend.bench import pyg_layers

        patched = {patch.layer for patch in patches if not patch.generated}
        names = {name: [] if name in patched else ["no-kernel"] for name in classes}
        return names | {name: [] for name in pyg_layers.OTHERS}
    from gnn_backend.bench import dgl_layers

    unfit = dgl_layers.NOT_COMPARED
    names = {name: [f"not run: {unfit[name]}"] if name in unfit else [] for name in classes}
    known = {patch.attribute.removeprefix("_") for patch in patches}
    names |= {name: [] for name in dgl_layers.PATTERNS}
    return names | {f"ops.{name}": [] for name in dgl_layers.OPERATORS if name in known}


def _try(host: str, name: str, device: str) -> tuple[str, list[str]]:
    """Run one layer stock and accelerated; say what came of it."""
    from gnn_backend import config
    from gnn_backend.bench import samples
    from gnn_backend.judging import differing

    with config.override(cpu_target="emulator" if device == "emulator" else "numba"):
        try:
            ours, stock = _samples(host, name, device)
            found = samples.compare(host, ours, stock, repeats=0)
        except Exception as error:  # whatever stops a layer is the reason
            first = [*str(error).splitlines(), ""][0]
            return "stock", [f"not run: {type(error).__name__}: {first}"]
        products = samples.products_alone(host, found)
        if not products and not (found.launches and (found.symbols or host == OWN)):
            return "stock", found.reasons or ["no kernel was launched"]
        judged, rounding, own = found.judged_error, found.rounding, found.own_rounding
        if wrong := differing(judged, rounding, own, _TOLERANCE):
            worst = max(wrong, key=lambda name: wrong[name])
            return "stock", [f"differs from stock: {worst} by {wrong[worst]:.1e}"]
        if host == OWN:
            return "fused", []
        if f"{host}.{name}" in found.symbols and not (products and not found.launches):
            return "fused", _fallbacks(host, name, device)
        return "products" if products else "kernels", found.reasons


def _samples(host: str, name: str, device: str) -> tuple[Sample, Sample | None]:
    from gnn_backend.bench import own_layers, samples

    request = _request(host, name, device)
    return own_layers.samples(request) if host == OWN else samples.samples(request)


def _request(host: str, name: str, device: str, **options: Any) -> Request:
    from gnn_backend.bench.hosts import Shape
    from gnn_backend.bench.samples import Request
    from gnn_backend.datasets import GraphData, uniform

    data = GraphData("built-in", uniform(_NODES, _NODES, _EDGES), _NODES)
    place = "cuda" if device == "cuda" else "cpu"
    return Request(host, name, data, Shape(8, 4, 2), place, options=options)


def _edge_features(device: str, width: int) -> Any:
    import torch

    place = "cuda" if device == "cuda" else "cpu"
    return torch.randn(_EDGES, width, device=place)


def _fallbacks(host: str, name: str, device: str) -> list[str]:
    """Reason codes of the options that make a layer fall back, as a dry run gives them."""
    import inspect

    import gnn_backend
    from gnn_backend.bench import hosts, samples

    classes = hosts.layer_classes(host)
    if name not in classes:
        return []  # a pattern has no options
    cls = classes[name]
    constructor = inspect.signature(cls).parameters
    forward = inspect.signature(cls.forward).parameters
    tries: list[tuple[dict[str, Any], dict[str, Any]]] = []
    tries += [(options, {}) for options in _OPTIONS if options.keys() <= constructor.keys()]
    tries += [({}, {name: True}) for name in _CALL_OPTIONS if name in forward]
    if "edge_dim" in constructor and "edge_attr" in forward:
        tries.append(({"edge_dim": 3}, {"edge_attr": _edge_features(device, 3)}))
    codes: dict[str, None] = {}
    for options, call_options in tries:
        ours, _ = samples.samples(_request(host, name, device, **options))
        explained = gnn_backend.explain(ours.layer, *ours.args, **{**ours.kwargs, **call_options})
        codes |= dict.fromkeys(r.reason for r in explained.layers if r.reason is not None)
    return list(codes)


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("layer", "status", "reasons", title=f"{len(rows)} layers and operators")
    for row in sorted(rows, key=lambda row: row["status"] == "stock"):
        mark = row["status"] if row["status"] == "stock" else f"[green]{row['status']}[/]"
        table.add_row(row["symbol"], mark, ", ".join(row["reasons"]))
    output.console().print(table)
