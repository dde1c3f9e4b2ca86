"""What ``emit`` prints, and the document that it writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from gnn_backend.cli import output
from gnn_backend.cli.emit_input import Emitted
from gnn_backend.ir.emission import Direction, logical_lines, source_of
from gnn_backend.ir.kernel_specs import Module


def show(found: Emitted, sections: Sequence[str]) -> None:
    """Print the sections, then the summary.

    Parameters
    ----------
    found : Emitted
    sections : sequence of str
        Among program, ir, steps and source.
    """
    making = {
        "program": lambda: _program(found),
        "ir": lambda: _ir(found),
        "steps": lambda: _steps(found),
        "source": lambda: _source(found),
    }
    console = output.console()
    for name in making:
        if name in sections:
            for line in making[name]():
                console.print(line, markup=False, highlight=False, soft_wrap=True)
    _summarise(found)


def as_json(found: Emitted) -> str:
    """All of it in one JSON document."""
    r = found.relations
    document = {
        "model": found.model,
        "graph": {
            "name": found.graph, "num_nodes": r.graph.num_src, "num_edges": r.graph.num_edges,
            "num_edge_types": r.num_edge_types, "num_node_types": r.num_node_types,
        },
        "options": found.options,
        "target": found.target,
        "dtype": found.dtype,
        "program": {"source": _text(found), "logical_lines": logical_lines(_text(found))},
        **{d.name: _direction(d) for d in found.emission.directions},
        "modules": {
            m.name: {"lines": m.lines, "generated": m.generated, "text": m.text}
            for m in found.emission.modules()
        },
        "summary": [_counts(d) for d in found.emission.directions],
    }  # fmt: skip
    return json.dumps(document, indent=2) + "\n"


def _direction(direction: Direction) -> dict[str, Any]:
    reports = direction.reports
    return {
        "start": str(direction.start),
        "passes": [
            {
                "name": r.name,
                "before": asdict(r.saving.before),
                "after": asdict(r.saving.after),
                "program": str(r.program),
            }
            for r in reports
        ],
        "steps": [
            {"step": line, "spec": list(spec.lines), "modules": [m.name for m in spec.modules]}
            for line, spec in zip(direction.steps, direction.specs, strict=True)
        ],
    }


# --------------------------------------------------------------------------- sections


def _text(found: Emitted) -> str:
    return source_of(found.program.__wrapped__)


def _title(text: str) -> Iterator[str]:
    yield f"\n==== {text}\n"


def _program(found: Emitted) -> Iterator[str]:
    yield from _title(f"program: {logical_lines(_text(found))} logical lines")
    yield _text(found)


def _ir(found: Emitted) -> Iterator[str]:
    for d in found.emission.directions:
        yield from _title(f"{d.name}, IR: {_values(d.start)} values")
        yield str(d.start)
        for report in d.reports:
            yield from _title(f"{d.name}, IR after {report}")
            yield str(report.program)


def _steps(found: Emitted) -> Iterator[str]:
    for d in found.emission.directions:
        yield from _title(f"{d.name}, {len(d.steps)} steps")
        for number, (line, spec) in enumerate(zip(d.steps, d.specs, strict=True), 1):
            yield f"{number:3} {line}"
            yield from (f"        {line}" for line in spec.lines)
            yield from (f"        -> {m.name}, {m.lines} lines" for m in spec.modules)


def _source(found: Emitted) -> Iterator[str]:
    for module in found.emission.modules():
        yield from _title(f"{_kind(module)} {module.name}: {module.lines} lines")
        yield module.text


def _kind(module: Module) -> str:
    return "generated" if module.generated else "instance of a kernel,"


# --------------------------------------------------------------------------- summary


def _values(program: Any) -> int:
    return sum(1 for v in program.values() if v.op != "input")


def _counts(direction: Direction) -> dict[str, Any]:
    modules = direction.modules()
    generated = [m for m in modules if m.generated]
    return {
        "direction": direction.name,
        "values_traced": _values(direction.start),
        "values_optimised": _values(direction.plan.program),
        "steps": len(direction.steps),
        "generated_kernels": len(generated),
        "generated_lines": sum(m.lines for m in generated),
        "product_kernels": len(modules) - len(generated),
    }


_HEADINGS = {
    "direction": "",
    "values_traced": "IR values",
    "values_optimised": "after passes",
    "steps": "steps",
    "generated_kernels": "generated modules",
    "generated_lines": "their lines",
    "product_kernels": "product kernels",
}


def _summarise(found: Emitted) -> None:
    from rich.table import Table

    name = f"{found.model} on {found.graph}: {found.options}, {found.target}, {found.dtype}"
    table = Table(title=name, title_justify="left")
    table.add_column("program lines", justify="right")
    for heading in _HEADINGS.values():
        table.add_column(heading, justify="right")
    lines = logical_lines(_text(found))
    for place, direction in enumerate(found.emission.directions):
        counts = _counts(direction)
        table.add_row("" if place else str(lines), *(str(counts[k]) for k in _HEADINGS))
    output.console().print(table)
