"""``doctor``: what is installed, what is found, what compiles, and what to do about the rest."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnn_backend.cli import output

if TYPE_CHECKING:
    from rich.console import Console


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Check versions, GPU, hosts, cache and compilers; exit code 1 when something is wrong."""
    report = examine()
    if as_json:
        output.print_json(report)
    else:
        _show(report)
    raise SystemExit(0 if report["ok"] else output.CHECK_FAILED)


def examine() -> dict[str, Any]:
    """The whole report; ``problems`` lists what is wrong, each with a remedy under ``fix``."""
    from gnn_backend.bench.environment import gpu_match, versions
    from gnn_backend.cli.smoke import smoke_compiles

    report: dict[str, Any] = {
        "versions": versions(),
        "gpu": gpu_match(),
        "hosts": {name: _host(name) for name in ("dgl", "pyg")},
        "cache": cache_report(),
        "compile": smoke_compiles(),
    }
    report["problems"] = _problems(report)
    return {"ok": not report["problems"], **report}


def cache_report() -> dict[str, Any]:
    """Where compiled kernels are kept, whether that can be written, and what it holds."""
    from gnn_backend.config import get_config
    from gnn_backend.runtime.cache import PARTS, writing_problem

    folder = get_config().cache_dir
    parts = [folder / part for part in PARTS]
    sizes = [size for part in parts for p in part.rglob("*") if (size := _file_size(p)) is not None]
    places = [folder, *(part for part in parts if part.exists())]
    return {
        "path": str(folder),
        "writable": all(writing_problem(place) is None for place in places),
        "files": len(sizes),
        "bytes": sum(sizes),
    }


def _file_size(path: Path) -> int | None:
    """Bytes of a file; None for a folder, or where another process has removed it."""
    try:
        return path.stat().st_size if path.is_file() else None
    except FileNotFoundError:
        return None


def _host(host: str) -> dict[str, Any]:
    """Whether a host is installed and loads, and where its patches would go."""
    from gnn_backend.bench import hosts

    if not hosts.installed(host):
        return {"installed": False, "loads": None, "error": None, "seams": []}
    try:
        hosts.layer_classes(host)
    except hosts.HostDoesNotImport as error:
        return {"installed": True, "loads": False, "error": error.cause, "seams": []}
    return {"installed": True, "loads": True, "error": None, "seams": _seams(host)}


def _seams(host: str) -> list[dict[str, Any]]:
    from gnn_backend import enabled, patches
    from gnn_backend.patching import registry

    for module in {patch.module for patch in registry.known() if patch.host == host}:
        try:
            importlib.import_module(module)
        except ImportError:
            continue  # its patches are then listed as not found
    with enabled(hosts=[host]):
        rows = [row for row in patches() if row.host == host]
    return [{"symbol": r.target, "found": r.active, "note": r.note} for r in rows]


def _problems(report: dict[str, Any]) -> list[dict[str, str]]:
    found = [*_gpu_problems(report), *_host_problems(report["hosts"])]
    if not report["cache"]["writable"]:
        found.append(_problem(
            f"the cache directory {report['cache']['path']} cannot be written; every process "
            "compiles its kernels anew",
            "set GNN_BACKEND_CACHE_DIR to a directory that you own",
        ))  # fmt: skip
    remedies = {
        "numba": "reinstall numba and tbb: pip install --force-reinstall numba tbb",
        "emulator": "check that g++ compiles C++17; nothing but kernel tests needs it",
        "nvrtc": "reinstall the GPU extra: pip install 'gnn_backend[cuda13]' (or [cuda12])",
    }
    for engine, result in report["compile"].items():
        if result["ok"] is False:
            found.append(_problem(f"{engine}: {result['detail']}", remedies[engine]))
    return found


def _gpu_problems(report: dict[str, Any]) -> list[dict[str, str]]:
    gpu = report["gpu"]
    if gpu["device"] is None:
        return []
    arch, driver, nvrtc = gpu["device"]["arch"], gpu["driver_cuda"], gpu["nvrtc"]
    if report["versions"]["cupy"] is None or nvrtc is None:
        return [_problem(
            "a GPU is present but CuPy with NVRTC is not: CUDA tensors run the stock layers",
            "pip install 'gnn_backend[cuda13]', or [cuda12] for a CUDA 12 driver",
        )]  # fmt: skip
    if gpu["match"]:
        return []
    if gpu["target"] is None:
        return [_problem(
            f"NVRTC {nvrtc} cannot compile for this GPU ({arch})",
            "install a newer NVRTC: pip install --upgrade nvidia-cuda-nvrtc",
        )]  # fmt: skip
    return [_problem(
        f"the driver supports CUDA {driver}, kernels come from NVRTC {nvrtc}",
        "update the driver, or install the extra of its CUDA version: 'gnn_backend[cuda12]'",
    )]  # fmt: skip


def _host_problems(hosts: dict[str, Any]) -> list[dict[str, str]]:
    found = []
    for name, host in hosts.items():
        if host["loads"] is False:
            found.append(_problem(
                f"{name} is installed but does not import: {host['error']}",
                "reinstall it at a version that the extra of its name pins, "
                f"pip install 'gnn_backend[{name}]'",
            ))  # fmt: skip
        for seam in host["seams"]:
            if not seam["found"]:
                found.append(_problem(
                    f"{seam['symbol']} is not there to patch: {seam['note']}",
                    "install a tested version of the host; its layer runs unaccelerated",
                ))  # fmt: skip
    return found


def _problem(what: str, fix: str) -> dict[str, str]:
    return {"what": what, "fix": fix}


def _show(report: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    console = output.console()
    console.soft_wrap = True  # long lines are for copying
    table = Table("component", "version", title="versions")
    for name, version in report["versions"].items():
        table.add_row(name, version or "[dim]not installed[/]")
    console.print(table)
    _show_gpu(console, report["gpu"])
    for name, host in report["hosts"].items():
        state = {None: "not installed", True: "loads", False: f"fails: {host['error']}"}
        console.print(f"{name}: {state[host['loads']]}", highlight=False, markup=False)
        for seam in host["seams"]:
            mark = "found" if seam["found"] else f"missing ({seam['note']})"
            console.print(f"  {seam['symbol']}: {mark}", highlight=False)
    cache = report["cache"]
    size = output.bytes_text(cache["bytes"])
    console.print(f"cache: {cache['path']}, {cache['files']} files, {size}", highlight=False)
    for engine, result in report["compile"].items():
        mark = {True: "ok", False: "failed", None: "skipped"}[result["ok"]]
        console.print(f"{engine}: {mark}, {result['detail']}", highlight=False, markup=False)
    for problem in report["problems"]:
        what, fix = escape(problem["what"]), escape(problem["fix"])
        console.print(f"[red]problem:[/] {what}\n  do: {fix}", highlight=False)
    console.print("[green]all well[/]" if report["ok"] else "")


def _show_gpu(console: Console, gpu: dict[str, Any]) -> None:
    device = gpu["device"]
    if device is None:
        console.print("GPU: none; CUDA kernels are not used here", highlight=False)
        return
    console.print(
        f"GPU: {device['name']} ({device['arch']}), driver for CUDA {gpu['driver_cuda']}, "
        f"NVRTC {gpu['nvrtc']}: {'match' if gpu['match'] else '[red]no match[/]'}",
        highlight=False,
    )
