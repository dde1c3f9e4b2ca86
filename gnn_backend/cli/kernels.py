"""``kernels``: compile every kernel instance with NVRTC, without a GPU, and report resources."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnn_backend.cli import output

if TYPE_CHECKING:
    from gnn_backend.runtime.instances import Unit

DEFAULT_ARCHS = "sm_80,sm_90,sm_100,sm_120"


def kernels(
    arch: Annotated[str, typer.Option(help="Architectures, comma-separated.")] = DEFAULT_ARCHS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list on stdout.")] = False,
    build: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the cubins to DIR; on the GPU machine set "
            "GNN_BACKEND_KERNEL_PATH to that directory and nothing is compiled there.",
        ),
    ] = None,
    only: Annotated[str, typer.Option(help="Only units whose name contains this.")] = "",
    jobs: Annotated[int, typer.Option(min=0, help="Compilations at once; 0: one a core.")] = 0,
) -> None:  # fmt: skip
    """Compile the kernels and list registers, spilled bytes and stack of each.

    Works without a GPU; needs CuPy and NVRTC. A kernel that does not compile ends the command.
    """
    archs = _checked_archs(arch)
    if build is not None:
        output.check_writable("--build", build)
    units = [unit for unit in every_unit() if only in unit.name]
    if not units:
        output.fail(f"--only: no unit's name contains {only!r}")
    rows = report(units, archs, build, jobs or os.cpu_count() or 1)
    if as_json:
        output.print_json(rows)
    else:
        _show(rows)
    if build is not None:
        output.note(f"{len(units) * len(archs)} cubins in {build.resolve()}")


def every_unit() -> list[Unit]:
    """All of attention, typed linears and the yardstick; the sparse operators' fast ones."""
    from gnn_backend.bench import yardstick
    from gnn_backend.runtime import block_units, gemm_units, stacking
    from gnn_backend.runtime.instances import all_units
    from gnn_backend.runtime.sparse import aggregation_instances
    from gnn_backend.runtime.sparse.instances import fast_units

    sparse = [*fast_units(), *aggregation_instances.fast_units()]
    products = [*block_units.all_units(), *gemm_units.all_units(), *stacking.all_units()]
    return [*all_units(), *products, *sparse, *yardstick.all_units()]


def report(
    units: list[Unit], archs: list[str], build: Path | None = None, jobs: int = 1
) -> list[dict[str, Any]]:
    """Compile units for architectures.

    Parameters
    ----------
    units : list of Unit
    archs : list of str
        ``sm_90`` and the like.
    build : Path, optional
        Where the cubins are written, under the names that the runtime looks for.
    jobs : int
        Threads that compile.

    Returns
    -------
    list of dict
        name, arch, registers, spill_bytes and stack_bytes of every kernel, in a fixed order.
    """
    from gnn_backend.runtime.compile import compile_unit, write_cubin

    if build is not None:
        build.mkdir(parents=True, exist_ok=True)

    def one(pair: tuple[str, Unit]) -> list[dict[str, Any]]:
        arch, unit = pair
        if build is None:
            _, resources = compile_unit(unit, arch)
        else:
            resources = write_cubin(build, unit, arch)
        return [asdict(kernel) for kernel in resources]

    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(one, [(arch, unit) for arch in archs for unit in units])
        return [row for rows in found for row in rows]


def _checked_archs(text: str) -> list[str]:
    from gnn_backend.bench.environment import nvrtc_archs, nvrtc_version

    if nvrtc_version() is None:
        output.fail(
            "no NVRTC: install CuPy and NVRTC, pip install 'gnn_backend[cuda13]' (or [cuda12])",
            output.CHECK_FAILED,
        )
    archs = [part.strip() for part in text.split(",") if part.strip()]
    known = [f"sm_{number}" for number in nvrtc_archs()]
    unknown = [arch for arch in archs if arch not in known]
    if unknown or not archs:
        output.fail(f"--arch: got {text!r}, expected names among {', '.join(known)}")
    return archs


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("kernel", "arch", title=f"{len(rows)} kernels")
    for heading in ("registers", "spill bytes", "stack bytes"):
        table.add_column(heading, justify="right")
    for row in rows:
        spill = f"[red]{row['spill_bytes']}[/]" if row["spill_bytes"] else "0"
        cells = str(row["registers"]), spill, str(row["stack_bytes"])
        table.add_row(row["name"], row["arch"], *cells)
    output.console().print(table)
