"""``compare``: one layer of a host against its stock self, on a graph from a file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnn_backend.cli import output

if TYPE_CHECKING:
    import torch

    from gnn_backend.bench.hosts import Shape
    from gnn_backend.compare import Comparison
    from gnn_backend.datasets import GraphData

DEVICES = ("cpu", "cuda", "emulator")
DTYPES = ("float32", "float64", "bfloat16", "float16")

#: Edges that the emulator takes in a few seconds; larger graphs are sampled down to this.
EMULATOR_EDGES = 4000

_COLUMNS = ("max abs error", "max rel error")
_NOTHING = {"stock": None, "backend": None}
_NOT_COMPARED: dict[str, Any] = {
    "accelerated": False,
    "max_abs_error": {},
    "max_rel_error": {},
    "peak_bytes": _NOTHING,
    "ms": _NOTHING,
    "launches": 0,
    "symbols": [],
    "judged_error": {},
    "reference": "none",
    "rounding": {},
    "own_rounding": {},
}


def compare(
    graph: Annotated[str, typer.Option(help="An npz file with edge_index, or a named graph.")],
    host: Annotated[str, typer.Option(help="dgl or pyg.")] = "pyg",
    layer: Annotated[str, typer.Option(help="Name of a layer of dgl.nn, or of a "
                                           "convolution of PyG.")] = "GATv2Conv",
    heads: Annotated[int, typer.Option(min=1)] = 2,
    dim: Annotated[int, typer.Option(min=1, help="Output width of a head.")] = 64,
    in_dim: Annotated[int, typer.Option(min=1)] = 128,
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, or emulator (the CUDA kernels on the "
                                             "CPU).")] = "cpu",
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs; the median counts.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:  # fmt: skip
    """Compare outputs, gradients, time and memory of a layer with the stock layer.

    DGL's layers on CUDA are compared with the stock layer on the CPU, for stock has no CUDA.
    Exit code 1 if an error is above the tolerance of the dtype (that of verify mode).
    """
    from gnn_backend.patching import registry

    output.check_choice("--host", host, registry.layer_hosts)
    output.check_choice("--device", device, DEVICES)
    output.check_choice("--dtype", dtype, DTYPES)
    import torch

    from gnn_backend import verify
    from gnn_backend.bench.hosts import Shape
    from gnn_backend.config import get_config
    from gnn_backend.datasets import load

    if device == "cuda" and not torch.cuda.is_available():
        output.fail("--device cuda: torch finds no CUDA device; use cpu or emulator")
    settings = {"host": host, "layer": layer, "graph": graph, "dtype": dtype, "device": device}
    whole = load(graph)
    data = _small_enough(whole) if device == "emulator" else whole
    result = _compared(settings, Shape(in_dim, dim, heads), data, repeats)
    tolerance = verify.RTOL.get(getattr(torch, dtype), get_config().verify_rtol)
    equal, alone = _judged(result, getattr(torch, dtype), tolerance)
    document = {
        **result,
        "equal": equal,
        "rounding_alone": alone,
        "tolerance": tolerance,
        **settings,
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "sampled_from_edges": None if data is whole else whole.num_edges,
        "in_dim": in_dim,
        "dim": dim,
        "heads": heads,
    }
    if as_json:
        output.print_json(document)
    else:
        _show(document)
    raise SystemExit(output.CHECK_FAILED if equal is False else 0)


def _judged(
    result: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> tuple[bool | None, list[str]]:
    """Whether all errors are within tolerance or rounding, and what is within rounding alone.

    None where nothing can judge: stock in another precision cannot.
    """
    from gnn_backend.compare import JUDGES
    from gnn_backend.judging import BRANCHED, differing

    if result["reference"] not in JUDGES:
        return None, []
    judged, branched = result["judged_error"], BRANCHED.get(dtype, 0.0)
    wrong = differing(judged, result["rounding"], result["own_rounding"], tolerance, branched)
    above = [name for name, error in judged.items() if not error <= tolerance]
    return not wrong, [name for name in above if name not in wrong]


def _small_enough(data: GraphData) -> GraphData:
    from gnn_backend.datasets import sample_edges

    if data.num_edges <= EMULATOR_EDGES:
        return data
    output.note(
        f"the emulator is slow: comparing on {EMULATOR_EDGES:,} edges drawn from the graph's "
        f"{data.num_edges:,}"
    )
    return sample_edges(data, EMULATOR_EDGES)


def _compared(
    settings: dict[str, str], shape: Shape, data: GraphData, repeats: int
) -> dict[str, Any]:
    """What the command is about: accelerated, reason, errors, peak_bytes and ms."""
    import torch

    from gnn_backend import config
    from gnn_backend.bench import samples
    from gnn_backend.errors import GNNBackendError, Unsupported

    on_cuda, emulator = (settings["device"] == name for name in ("cuda", "emulator"))
    request = samples.Request(
        settings["host"], settings["layer"], data, shape,
        "cuda" if on_cuda else "cpu", getattr(torch, settings["dtype"]),
    )  # fmt: skip
    try:
        ours, stock = samples.samples(request)
    except Unsupported as error:
        return {**_NOT_COMPARED, "reason": error.reason, "reasons": [error.reason]}
    except GNNBackendError:  # says by itself what is wrong
        raise
    except Exception as error:  # no memory for such sizes, a package that is not there, ...
        output.fail(f"cannot build {settings['layer']}: {_described(error)}")
    try:
        with config.override(cpu_target="emulator" if emulator else "numba"):
            found = samples.compare(request.host, ours, stock, repeats=repeats if on_cuda else 1)
    except GNNBackendError:
        raise
    except Exception as error:  # whatever the layer makes of such inputs
        output.fail(
            f"{settings['layer']} cannot be run on this graph, with these sizes and dtype: "
            f"{_described(error)}; compare a layer of your own with gnn_backend.compare"
        )
    if not found.max_abs_error:
        output.fail(f"{settings['layer']} gives nothing to compare")
    if settings["device"] == "cpu":
        found = _measured_apart(found, settings, shape, repeats)
    return found.to_dict()


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {[*str(error).splitlines(), ''][0]}"


def _measured_apart(
    found: Comparison, settings: dict[str, str], shape: Shape, repeats: int
) -> Comparison:
    """Replace memory and time by those of fresh processes, which earlier runs do not blur.

    Where stock did not run as it is (``found.reference`` says how it ran), it has no figures.
    """
    from gnn_backend.bench.resident import Measurement, Request, measure

    sides: dict[str, Measurement | None] = {}
    for side, accelerated in (("stock", False), ("backend", True)):
        request = Request(
            settings["host"], settings["layer"], settings["graph"], accelerated, shape,
            settings["dtype"], repeats=repeats,
        )  # fmt: skip
        there = accelerated or found.reference == "stock"
        sides[side] = measure(request, GNN_BACKEND_CPU_TARGET="numba") if there else None
    return replace(
        found,
        peak_bytes={k: None if m is None else m.peak_bytes for k, m in sides.items()},
        ms={k: None if m is None else m.forward_backward_ms for k, m in sides.items()},
    )


def _show(document: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("tensor", title=f"{document['host']} {document['layer']} against stock")
    errors = {heading: document[heading.replace(" ", "_")] for heading in _COLUMNS}
    if document["rounding"]:
        errors |= {"float64 to stock": document["rounding"],
                   "float64 to ours": document["own_rounding"]}  # fmt: skip
    for heading in errors:
        table.add_column(heading, justify="right")
    for name in document["max_abs_error"]:
        table.add_row(name, *(f"{by_name[name]:.2e}" for by_name in errors.values()))
    console = output.console()
    console.print(table)
    for name in document["rounding_alone"]:
        ours, stock = document["own_rounding"][name], document["rounding"][name]
        nearer = "closer to float64 than stock" if ours <= stock else "rounding, as float64 shows"
        console.print(f"{name}: above the tolerance, {nearer}", highlight=False)
    runs = "accelerated" if document["accelerated"] else f"stock ({document['reason']})"
    verdict = {True: "equal within", False: "[red]above[/]", None: "not judged by"}
    console.print(f"{runs}; {verdict[document['equal']]} the tolerance {document['tolerance']:g}")
    if document["reference"] != "stock":
        console.print(f"reference: {document['reference']}")
    for label, key in (("stock", "stock"), ("this package", "backend")):
        time, peak = document["ms"][key], output.bytes_text(document["peak_bytes"][key])
        shown = "-" if time is None else f"{time:,.2f} ms"
        console.print(f"{label}: forward+backward {shown}, peak {peak}", highlight=False)
