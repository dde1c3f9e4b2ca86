"""Relational programs on the device: results as the plain-torch twin's, and kernels of a step.

The twin runs on the CPU in float64, on the same numbers. Random programs are those of
``tests/ir/strategies.py`` at a fixed seed.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import gnn_backend
from gnn_backend.graph import Graph
from gnn_backend.graph.relations import Relations
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.execute import Executable
from gnn_backend.ir.interpret import evaluate
from gnn_backend.ir.passes import NAMED, Options
from gnn_backend.ir.values import Program
from gnn_backend.layers.relational.models import MODELS, layer_arguments
from tests.gpu import support
from tests.gpu.support import table
from tests.ir import models

pytestmark = support.MARKS

Tensors = dict[str, Tensor]
#: In bfloat16 each stored product is rounded to 8 bits.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.1}
RANDOM_PROGRAMS, SEED = 40, 6


def on_device(relations: Relations) -> Relations:
    """The same graph and types, edges in the same order."""
    ends = [relations.index(Domain.EDGE, end) for end in (Domain.SRC, Domain.DST)]
    own = torch.arange(relations.graph.num_edges, dtype=torch.int32)  # an edge a node, in order
    edges = torch.stack([own if end is None else end for end in ends]).to(support.DEVICE)
    graph = Graph.from_edge_index(edges, relations.graph.num_src, relations.graph.num_dst)
    types = relations.edge_types, relations.src_types, relations.dst_types
    edge, src, dst = (None if t is None else t.to(support.DEVICE) for t in types)
    return Relations(graph, edge, relations.num_edge_types, src, dst, relations.num_node_types)


def results(
    run: Callable[[Tensors], list[Tensor]], given: Mapping[str, Tensor], dtype: torch.dtype,
    device: str,
) -> list[Tensor]:  # fmt: skip
    """Outputs, and gradients of all inputs; in float64 on the CPU."""
    leaves = {k: x.detach().to(device, dtype).requires_grad_() for k, x in given.items()}
    outputs = run(leaves)
    g = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(y.shape, generator=g, dtype=torch.float64) for y in outputs]
    flowing = [
        (y, (c * y.detach().cpu().isfinite()).to(device, dtype))
        for y, c in zip(outputs, cotangents, strict=True)
        if y.requires_grad
    ]
    wanted = list(leaves.values())
    grads = [torch.zeros_like(x) for x in wanted]
    if flowing:
        ys, weights = zip(*flowing, strict=True)
        grads = list(
            torch.autograd.grad(ys, wanted, weights, allow_unused=True, materialize_grads=True)
        )
    return [t.detach().cpu().double() for t in (*outputs, *grads)]


def error(found: Tensor, expected: Tensor) -> float:
    """Largest difference beside the largest number; infinite where other rows are infinite."""
    finite = expected.isfinite()
    if not torch.equal(found.isfinite(), finite):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = max(1.0, expected[finite].abs().max().item())
    return (found[finite] - expected[finite]).abs().max().item() / scale


def check(
    program: Program, relations: Relations, options: Options, dtype: torch.dtype,
    given: Mapping[str, Tensor],
) -> None:  # fmt: skip
    """Compiled on the device against the twin."""
    given = {k: x.to(dtype).double() for k, x in given.items()}
    there = on_device(relations)
    made = Executable(program, models.sizes(relations), options)
    found = results(lambda t: made(there, t), given, dtype, support.DEVICE)
    expected = results(lambda t: evaluate(program, relations, t), given, torch.float64, "cpu")
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert error(a, b) <= TOLERANCE[dtype], f"result {k}: {error(a, b):.2g}\n{program}"


@table("dtype", (torch.float32, torch.bfloat16))
@table("chunk", (None, 8))
@table("options", NAMED)
@table("model", models.MODELS)
def test_models_equal_the_twin(
    model: str, options: str, chunk: int | None, dtype: torch.dtype
) -> None:
    """Whole rows, and rows that are cut into many parts."""
    program, relations = models.MODELS[model](), models.graph()
    given = models.inputs(program, relations, torch.float64)
    with contextlib.nullcontext() if chunk is None else support.chunks_of(chunk):
        check(program, relations, NAMED[options], dtype, given)


def test_random_programs_equal_the_twin() -> None:
    if importlib.util.find_spec("hypothesis") is None:
        support.skip("no hypothesis, which draws the programs")
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from tests.ir import strategies

    checked = []

    @seed(SEED)
    @settings(
        max_examples=RANDOM_PROGRAMS, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategies.programs(), strategies.relations())
    def one(program: Program, relations: Relations) -> None:
        tensors = strategies.tensors(program, relations)
        check(program, relations, NAMED["auto"], torch.float32, tensors)
        checked.append(program)

    one()
    assert len(checked) >= RANDOM_PROGRAMS // 2


# --------------------------------------------------------------------------- kernels of a step

# Rows that are cut into parts take a merge more, so the same rows are cut for every number of
# relations: those of hubs and types, and none of other nodes, which have 20 edges, or 4.
NODES, EDGES, HUB = 40_000, 800_000, 5_000
COUNTS = (4, 400)  # of relations
WRAPPED_NODES, WRAPPED_EDGES = 10_000, 40_000


def kernels_of(step: Callable[[], object]) -> Counter[str]:
    """Kernels that run on the device in a step, by name, copies and fills by the driver apart."""
    for _ in range(3):  # compiles, and builds what the graph keeps
        step()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as record:
        step()
        torch.cuda.synchronize()
    names = [e.name for e in record.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return Counter(n for n in names if not n.startswith(("Memcpy", "Memset")))


def skewed(types: int, device: str = support.DEVICE) -> Relations:
    """A graph with a hub at either end, whose edges all have type 0."""
    g = torch.Generator().manual_seed(0)
    src, dst = torch.randint(NODES, (2, EDGES), generator=g)
    kinds = torch.randint(types, (EDGES,), generator=g)
    dst[:HUB], src[HUB : 2 * HUB], kinds[: 2 * HUB] = 1, 2, 0
    graph = Graph.from_edge_index(torch.stack([src, dst]).to(device), NODES, NODES)
    return Relations(graph, kinds.to(device), types)


def layer_step(
    model: str, relations: Relations, options: str, device: str = support.DEVICE
) -> Callable[[], object]:
    """Forward and backward of a layer, gradients to features and all parameters."""
    program = MODELS[model].optimised(NAMED[options])
    shapes, constants = layer_arguments(model, relations, 64, 64)
    given = {
        name: (torch.randn(shape, device=device) / 8).requires_grad_()
        for name, shape in shapes.items()
    }

    def step() -> object:
        out = program(relations, **given, **constants)
        assert isinstance(out, Tensor)
        return torch.autograd.grad(out, list(given.values()), torch.ones_like(out))

    return step


@table("options", ("vanilla", "cf"))
@table("model", MODELS)
def test_kernels_do_not_depend_on_the_number_of_relations(model: str, options: str) -> None:
    few, many = (kernels_of(layer_step(model, skewed(count), options)) for count in COUNTS)
    assert few
    assert few.total() == many.total(), f"{few - many} against {many - few}"


def wrapper_step(count: int, device: str = support.DEVICE) -> Callable[[], object]:
    """PyG's ``HeteroConv`` over a ``SAGEConv`` a relation, all with the same number of edges."""
    from torch_geometric.nn import HeteroConv, SAGEConv

    torch.manual_seed(0)
    names = [("node", f"r{k}", "node") for k in range(count)]
    ends = torch.randint(WRAPPED_NODES, (2, WRAPPED_EDGES))
    edges: dict[Any, Tensor] = {
        name: part.contiguous().to(device)
        for name, part in zip(names, ends.chunk(count, 1), strict=True)
    }
    wrapper = HeteroConv({name: SAGEConv(64, 64) for name in names}).to(device)
    x = torch.randn(WRAPPED_NODES, 64, device=device, requires_grad=True)
    wanted = [x, *wrapper.parameters()]

    def step() -> object:
        out = wrapper({"node": x}, edges)["node"]
        return torch.autograd.grad(out, wanted, torch.ones_like(out))

    return step


def test_kernels_of_a_wrapper_do_not_depend_on_the_number_of_relations() -> None:
    if importlib.util.find_spec("torch_geometric") is None:
        support.skip("no PyG")
    with gnn_backend.enabled(mode="strict"):
        few, many = (kernels_of(wrapper_step(count)) for count in COUNTS)
    assert few
    assert few.total() == many.total(), f"{few - many} against {many - few}"
