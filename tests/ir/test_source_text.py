"""Lines in blocks, and what kernels' texts have in common."""

from __future__ import annotations

from gnn_backend.ir.domains import Domain
from gnn_backend.ir.emit_cuda_registers import Braces
from gnn_backend.ir.emit_numba_registers import Colons
from gnn_backend.ir.source_text import arguments, row_of
from gnn_backend.ir.traversal import Reduction, Step, Table, Traversal

TABLES = tuple(Table(d, 1, 4) for d in (Domain.DST, Domain.SRC, Domain.NODE_TYPE, Domain.PARAM))
SUM = Traversal(
    Domain.DST, Domain.EDGE, 1, 4, TABLES, (Table(Domain.DST, 1, 4),),
    tuple(Step("load", (), 1, 4, table=n) for n in range(4)), (Reduction("sum", 1, 0),),
)  # fmt: skip


def test_blocks_indent() -> None:
    text = Braces()
    with text.block("struct A", "};"), text.each("i", "K"):
        text.add("x;")
    assert text.lines == [
        "struct A {", "    #pragma unroll", "    for (int i = 0; i < K; i++) {", "        x;",
        "    }", "};",
    ]  # fmt: skip
    text = Colons()
    with text.function("f(x)"):
        text.add("return x")
    assert text.lines == ["", "", "@inline", "def f(x):", "    return x"]


def test_arguments_follow_from_the_tables() -> None:
    assert arguments(("heads",), SUM) == [
        ("heads", None), ("by_src", Domain.SRC), ("row_by_node_type", Domain.NODE_TYPE),
        ("in0", 0), ("in1", 1), ("in2", 2), ("in3", 3), ("out0", 0),
    ]  # fmt: skip


def test_rows_are_read_by_row_or_element() -> None:
    found = [row_of(SUM, table, "r_{}", "e_{}") for table in TABLES]
    assert found == ["row", "e_src", "r_node_type", "0"]
