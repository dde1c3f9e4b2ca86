"""The device engine on the emulator: which kernels run, what they are passed, what is kept."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch

from gnn_backend import config
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.profile import profile
from gnn_backend.runtime import device, edge_args, emulator, selection
from gnn_backend.runtime.launch import Cotangents, Saved, engine_for
from gnn_backend.runtime.selection import Pass, Schedule
from tests.emulator.support import launch
from tests.ops.support import NAMES, Problem, check_problem, problem, run, same_bits

UNIT = "gatv2_f32_l8h1k1sm"
FORWARD, DST, SRC = f"{UNIT}_forward", f"{UNIT}_backward_dst", f"{UNIT}_backward_src"
STATS, SOFTMAX, SUM = f"{UNIT}_row_stats", "merge_f32_softmax_v1", "merge_f32_sum_v1"
#: Kernels of a backward pass for each set of operands, where no row is split.
BACKWARD = {
    ("x_src",): [STATS, SRC],
    ("x_dst",): [DST],
    ("att",): [DST, SRC, SUM],
    ("x_src", "x_dst"): [DST, SRC],
    ("x_src", "att"): [DST, SRC, SUM],
    ("x_dst", "att"): [DST, SRC, SUM],
    ("x_src", "x_dst", "att"): [DST, SRC, SUM],
}


@pytest.fixture(autouse=True)
def on_the_emulator() -> Iterator[None]:
    with config.override(cpu_target="emulator"):
        yield


@pytest.fixture
def split_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda chunk: monkeypatch.setattr(selection, "chunk_for", lambda *_: chunk)


def passes(p: Problem, needs: tuple[str, ...]) -> tuple[Counter[str], Counter[str]]:
    """Kernels that the engine launches forward and backward."""
    engine = engine_for(torch.device("cpu"), torch.float32)
    operands = {n: t.detach() for n, t in p.operands.items()}
    call = (FUNCTORS["gatv2"], p.graph, operands, {"negative_slope": p.slope})
    with profile() as forward:
        out, lse, _ = engine.softmax_forward(*call)
    with profile() as backward:
        saved, cotangents = Saved(out, lse), Cotangents(p.cotangent)
        grads = engine.softmax_backward(*call, saved, cotangents, frozenset(needs))
    assert set(grads) == set(needs)
    counts = []
    for record in (forward, backward):
        assert {target for target, _ in record.launches} <= {"emulator"}
        counts.append(Counter({name: n for (_, name), n in record.launches.items()}))
    return counts[0], counts[1]


@pytest.mark.parametrize("needs", BACKWARD, ids="+".join)
def test_launches_without_split_rows(
    needs: tuple[str, ...], split_at: Callable[[int], None]
) -> None:
    split_at(1000)
    forward, backward = passes(problem(3, 7), needs)
    assert forward == Counter([FORWARD])
    assert backward == Counter(BACKWARD[needs])


@pytest.mark.parametrize("needs", BACKWARD, ids="+".join)
def test_launches_with_split_rows(needs: tuple[str, ...], split_at: Callable[[int], None]) -> None:
    """One merge more forward; backward one merge does all that there is."""
    split_at(8)
    forward, backward = passes(problem(3, 7), needs)
    assert forward == Counter([FORWARD, SOFTMAX])
    assert backward == Counter({*BACKWARD[needs], SUM})


def test_large_graphs_merge_each_backward_pass_at_once(
    split_at: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their partials are freed before the next pass allocates; the results are the same bits."""
    split_at(8)
    together = run(problem(3, 7))
    monkeypatch.setattr(device, "_FEW_EDGES", 0)
    assert passes(problem(3, 7), NAMES)[1] == Counter({DST: 1, SRC: 1, SUM: 2})
    assert same_bits(together, run(problem(3, 7)))


@pytest.mark.parametrize(
    ("num_src", "num_dst", "forward", "backward"),
    [(0, 0, [], [SUM]), (4, 0, [], [SRC, SUM]), (0, 4, [FORWARD], [DST, SUM])],
)
def test_nothing_runs_where_there_are_no_rows(
    num_src: int, num_dst: int, forward: list[str], backward: list[str]
) -> None:
    edges = torch.zeros(2, 0, dtype=torch.int64)
    p = problem(3, 7, edges=(edges, num_src, num_dst))
    assert passes(p, NAMES) == (Counter(forward), Counter(backward))


@pytest.mark.parametrize(("heads", "dim"), [(0, 7), (3, 0)])
def test_nothing_runs_where_rows_have_no_width(heads: int, dim: int) -> None:
    assert passes(problem(heads, dim), NAMES) == (Counter(), Counter())


@pytest.mark.parametrize("persistent", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_blocks_stride_over_the_tasks(
    persistent: int,
    dtype: torch.dtype,
    split_at: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split_at(8)
    monkeypatch.setattr("gnn_backend.runtime.plan._FEW_BLOCKS", persistent)
    monkeypatch.setattr("gnn_backend.runtime.plan._WAVES", {"dst": 1, "src": 1})
    monkeypatch.setattr(Schedule, "backward", {d: Pass(1, 1) for d in ("dst", "src")})
    check_problem(problem(3, 7, dtype=dtype))
    check_problem(problem(2, 64, dtype=dtype))


def test_hubs_of_more_slots_than_a_warp_merges_alone(split_at: Callable[[int], None]) -> None:
    split_at(2)
    for p in (problem(3, 7), problem(2, 64), problem(dtype=torch.bfloat16)):
        assert p.graph.splits("dst", 2).heavy_ptr.diff().max() > 16
        check_problem(p)


OFFSETS = """
#include "traversal.cuh"
#include "merge.cuh"
struct Out {{ long long* out; }};
GNNB_ENTRY(layout, Out, 1, {body})
"""
TRAVERSAL_FIELDS = [
    *("tasks", "num_tasks", "indices", "heads", "dim"),
    *(f"{table}[{i}]" for table in ("src", "dst", "param") for i in range(2)),
    *(f"scalar[{i}]" for i in range(4)),
    *("out", "lse", "grad_out", "row_stats", "grad", "param_partials", "partial", "partial_stats"),
    *("second_grad", "second_partial"),
    *(f"edge.{field}" for field in edge_args._FIELDS),
]
SIDE_FIELDS = ("heavy_rows", "heavy_ptr", "count", "partial", "out", "dim", "lse")
MERGE_FIELDS = [
    *(f"side[{i}].{field}" for i in range(device.MERGE_SIDES) for field in SIDE_FIELDS),
    *("heads", "dim", "split_lse", "partial_stats", "param_partials", "param_rows", "param_out"),
]
TRAVERSAL_ARGS = device.TRAVERSAL_ARGS.format + edge_args.EDGE_ARGS.format.lstrip("<")


@pytest.mark.parametrize(
    ("name", "fields", "packed"),
    [
        ("TraversalArgs", TRAVERSAL_FIELDS, struct.Struct(TRAVERSAL_ARGS)),
        ("MergeArgs", MERGE_FIELDS, device.MERGE_ARGS),
    ],
)
def test_argument_structs_are_those_of_the_kernels(
    name: str, fields: list[str], packed: struct.Struct
) -> None:
    kind = f"gnnb::{name}"
    places = [f"__builtin_offsetof({kind}, {field})" for field in fields] + [f"sizeof({kind})"]
    body = " ".join(f"args.out[{i}] = {place};" for i, place in enumerate(places))
    out = torch.zeros(len(places), dtype=torch.int64)
    launch(OFFSETS.format(body=body), "layout", 1, out)
    codes = "".join(
        code * int(count or 1) for count, code in _counted_codes(packed.format.lstrip("<"))
    )
    sizes = [struct.calcsize(f"<{code}") for code in codes]
    assert out.tolist() == [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    assert packed.size == int(out[-1])


def _counted_codes(text: str) -> Iterator[tuple[str, str]]:
    count = ""
    for char in text:
        if char.isdigit():
            count += char
        else:
            yield count, char
            count = ""


def test_a_short_argument_struct_is_refused() -> None:
    source, args = OFFSETS.format(body=""), struct.pack("<2q", 0, 0)
    with pytest.raises(emulator.EmulatorError, match="8 bytes, but 16 bytes were passed"):
        emulator.launch(source, "layout", (1, 1, 1), (1, 1, 1), args)


def test_the_engine_of_a_device_is_made_once() -> None:
    cpu = torch.device("cpu")
    engine = engine_for(cpu, torch.float32)
    assert engine_for(cpu, torch.bfloat16) is engine
    assert engine.emulated
