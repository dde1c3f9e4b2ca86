"""The benchmark of the typed linear: rows of edges times the weight of the edge's type, on a GPU.

Ours gathers the sources' rows and writes results in the caller's order of edges; beside it stand
what torch needs for the same: its gather alone, one product with a single weight (as many
operations), a loop over the types, and its grouped product, all three of rows that lie in order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from gnn_backend.bench import timing
from gnn_backend.bench.environment import device_report, document
from gnn_backend.bench.operators import release
from gnn_backend.datasets import RelationalData, load
from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.graph.incidence import Segments
from gnn_backend.graph.relations import Relations
from gnn_backend.ir.domains import Domain
from gnn_backend.ops import reference
from gnn_backend.ops.typed_linear import typed_linear, typed_weight_grad
from gnn_backend.runtime.gemm_choice import Product, can_group

#: By name: dtype, and whether float32 may be multiplied as tf32.
PRECISIONS = {
    "float32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "bfloat16": (torch.bfloat16, False),
    "float16": (torch.float16, False),
}
PASSES = ("forward", "input_grad", "weight_grad")
_CHECKED = 4096  # places whose results are compared with float64


@dataclass(frozen=True)
class Settings:
    """Sizes of a run: columns of the rows and of the result, and names of ``PRECISIONS``."""

    inner: int = 64
    outer: int = 64
    precisions: tuple[str, ...] = ("float32",)
    device: str = "cuda"


@dataclass(frozen=True)
class Operands:
    """What one shape's calls work on; places are edges that are sorted by type.

    Attributes
    ----------
    segments : Segments
    source, edge : int32 [E]
        Of each place: the row of ``nodes`` that it reads, and its place in the caller's order.
    nodes : Tensor [N, I]
    weight : Tensor [T, I, O]
    rows, grad : Tensor [E, I], [E, O]
        Of each place, for those who do not gather.
    """

    segments: Segments
    source: Tensor
    edge: Tensor
    nodes: Tensor
    weight: Tensor
    rows: Tensor
    grad: Tensor


def run(graphs: list[str], settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every graph in every precision.

    Parameters
    ----------
    graphs : list of str
        Names of ``datasets.RELATIONAL`` or files of typed graphs.
    settings : Settings
    say : callable
        Called with a line of progress.

    Returns
    -------
    dict
        The JSON document that ``bench show`` reads; times in milliseconds, None out of memory.
    """
    rows = []
    for name in graphs:
        data = load(name, device=settings.device)
        if not isinstance(data, RelationalData):
            raise invalid("graph", "edges have no types", name, "a relational graph")
        for precision in settings.precisions:
            say(f"{name} {precision}: {data.num_edges:,} edges")
            rows.append(_row(data, precision, settings))
            release(settings.device)
    return {**document("gemm", asdict(settings), device_report()), "graphs": rows}


def _row(data: RelationalData, precision: str, settings: Settings) -> dict[str, Any]:
    dtype, tf32 = PRECISIONS[precision]
    given = _operands(data, dtype, settings)
    with _tf32(tf32):
        times = {
            name: {way: _time(call) for way, call in ways.items()}
            for name, ways in _calls(given).items()
        }
        error = _error(given)
    return {
        "graph": data.name,
        "precision": precision,
        "rows": len(given.edge),
        "types": len(given.weight),
        "inner": settings.inner,
        "outer": settings.outer,
        "operations": 2 * len(given.edge) * settings.inner * settings.outer,
        "times": times,
        "max_rel_error": error,
    }


def _operands(data: RelationalData, dtype: torch.dtype, settings: Settings) -> Operands:
    graph = Graph.from_edge_index(data.edge_index, data.num_nodes, data.num_nodes)
    relations = Relations(graph, data.edge_type, data.num_edge_types)
    segments = relations.by_type(Domain.EDGE, Domain.EDGE_TYPE)
    source, edge = relations.index(Domain.EDGE, Domain.SRC), segments.order
    assert source is not None
    if edge is None:
        edge = torch.arange(len(source), dtype=torch.int32, device=source.device)
    source = source[edge.long()]
    generator = torch.Generator(device=settings.device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=settings.device).to(dtype)

    nodes = draw(data.num_nodes, settings.inner)
    weight = draw(data.num_edge_types, settings.inner, settings.outer) / settings.inner**0.5
    rows = nodes.index_select(0, source)
    return Operands(segments, source, edge, nodes, weight, rows, draw(len(edge), settings.outer))


def _calls(given: Operands) -> dict[str, dict[str, Callable[[], Any]]]:
    """Ways of each pass by name."""
    segments, weight, rows, grad = given.segments, given.weight, given.rows, given.grad
    source, edge = given.source, given.edge
    turned = weight.transpose(1, 2)
    out = torch.empty_like(grad)
    back = torch.empty_like(rows)
    sums = torch.empty_like(weight)

    def loop(left: Tensor, right: Tensor, to: Tensor) -> None:
        ends = torch.tensor(segments.lengths).cumsum(0).tolist()
        for matrix, (end, length) in enumerate(zip(ends, segments.lengths, strict=True)):
            if length:
                torch.mm(left[end - length : end], right[matrix], out=to[end - length : end])

    def loop_of_sums() -> None:
        parts = zip(rows.split(segments.lengths), grad.split(segments.lengths), strict=True)
        for matrix, (left, right) in enumerate(parts):
            torch.mm(left.t(), right, out=sums[matrix])

    calls: dict[str, dict[str, Callable[[], Any]]] = {
        "forward": {
            "gathered": lambda: typed_linear(
                given.nodes, weight, segments, rows=source, out_rows=edge
            ),
            "in order": lambda: typed_linear(rows, weight, segments),
            "torch gather alone": lambda: torch.index_select(given.nodes, 0, source, out=back),
            "torch.mm, one weight": lambda: torch.mm(rows, weight[0], out=out),
            "loop over types": lambda: loop(rows, weight, out),
        },
        "input_grad": {
            "gathered": lambda: typed_linear(grad, weight, segments, rows=edge, transposed=True),
            "in order": lambda: typed_linear(grad, weight, segments, transposed=True),
            "torch.mm, one weight": lambda: torch.mm(grad, turned[0], out=back),
            "loop over types": lambda: loop(grad, turned, back),
        },
        "weight_grad": {
            "gathered": lambda: typed_weight_grad(
                given.nodes, grad, segments, x_rows=source, grad_rows=edge
            ),
            "in order": lambda: typed_weight_grad(rows, grad, segments),
            "torch.mm, one weight": lambda: torch.mm(rows.t(), grad),
            "loop over types": loop_of_sums,
        },
    }
    if _groups(given):
        calls["forward"]["torch grouped"] = lambda: typed_linear(
            rows, weight, segments, way="grouped"
        )
        calls["input_grad"]["torch grouped"] = lambda: typed_linear(
            grad, weight, segments, transposed=True, way="grouped"
        )
        calls["weight_grad"]["torch grouped"] = lambda: typed_weight_grad(
            rows, grad, segments, way="grouped"
        )
    return calls


def _groups(given: Operands) -> bool:
    if not given.nodes.is_cuda:
        return False
    capability = torch.cuda.get_device_capability(given.nodes.device)
    types, inner, outer = given.weight.shape
    return can_group(
        Product(given.nodes.dtype, types, inner, outer, False, False, True, capability)
    )


def _time(call: Callable[[], Any]) -> float | None:
    try:
        return timing.brief_ms(call)
    except torch.cuda.OutOfMemoryError:
        return None


def _error(given: Operands) -> float:
    """Largest difference of some gathered results from float64, relative to the largest value."""
    types = torch.repeat_interleave(
        torch.arange(len(given.weight), device=given.edge.device),
        torch.tensor(given.segments.lengths, device=given.edge.device),
    )
    some = torch.randint(0, len(types), (_CHECKED,)).to(given.edge.device)
    got = typed_linear(
        given.nodes, given.weight, given.segments, rows=given.source, out_rows=given.edge
    )[given.edge[some].long()]
    want = reference.typed_linear(
        given.nodes.double(), given.weight.double(), types[some], rows=given.source[some]
    )
    return float((got.double() - want).abs().max() / want.abs().max())


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
