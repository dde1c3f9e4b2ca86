"""Programs as a user calls them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.graph.relations import Relations
from gnn_backend.program import dot, linear, program, softmax

NODES, EDGES, TYPES = 5, 8, 3


@program
def weighted(edge: Any, x: Any, weight: Any, norm: Any = None, scale: float = 2.0) -> Any:
    """Sum of projected rows."""
    rows = linear(x[edge.src], weight[edge.type]) * scale
    return edge.sum(rows if norm is None else rows * norm[edge])


@program
def scores(edge: Any, x: Any) -> Any:
    logit = dot(x[edge.src], x[edge.dst])
    return softmax(logit), edge.sum(logit)


def relations(edges: int = EDGES) -> Relations:
    g = torch.Generator().manual_seed(0)
    ends = torch.randint(0, NODES, (2, edges), generator=g)
    return Relations(Graph.from_edge_index(ends, NODES, NODES), torch.arange(edges) % TYPES, TYPES)


def tensors() -> dict[str, Tensor]:
    return {"x": torch.randn(NODES, 4), "weight": torch.randn(TYPES, 4, 2)}


def test_calls_and_twins_agree_and_give_what_the_function_returns() -> None:
    given = tensors()
    out = weighted(relations(), **given)
    assert isinstance(out, Tensor) and out.shape == (NODES, 2)
    torch.testing.assert_close(out, weighted.twin(relations(), **given))
    both = scores(relations(), x=given["x"])
    assert isinstance(both, tuple) and [t.shape for t in both] == [(EDGES,), (NODES,)]


def test_optional_tables_and_constants() -> None:
    given, norm = tensors(), torch.rand(EDGES)
    plain = weighted(relations(), **given)
    torch.testing.assert_close(weighted(relations(), **given, scale=4.0), 2 * plain)
    ones = weighted(relations(), **given, norm=torch.ones(EDGES))
    torch.testing.assert_close(ones, plain)
    assert not torch.allclose(weighted(relations(), **given, norm=norm), plain)


def test_gradients_of_a_table_that_both_ends_read_add_up() -> None:
    x = torch.randn(NODES, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: scores(relations(), x=t), (x,))
    assert torch.autograd.gradcheck(lambda t: scores.twin(relations(), x=t), (x,))


def test_traces_are_kept_by_rows_and_constants() -> None:
    shapes = {"x": (NODES, 4), "weight": (TYPES, 4, 2)}
    first = weighted.trace(shapes)
    assert weighted.trace({"x": (99, 4), "weight": (7, 4, 2)}) is first
    assert weighted.trace(shapes, scale=3.0) is not first
    assert weighted.trace({**shapes, "weight": (TYPES, 4, 3)}) is not first
    assert weighted.trace({**shapes, "norm": (EDGES,)}) is not first
    assert weighted.trace(shapes, scale=2) is not first  # an int may mean another thing
    assert weighted.trace(shapes, scale=2.0) is first
    assert weighted.__doc__ == "Sum of projected rows." and "weight" in repr(weighted)


def test_a_parameter_of_another_length_is_another_trace() -> None:
    @program
    def biased(edge: Any, x: Any, bias: Any) -> Any:
        return edge.sum(x[edge.src]) + bias

    assert biased.trace({"x": (5, 3), "bias": (3,)}) is not biased.trace(
        {"x": (5, 3), "bias": (1,)}
    )


def test_threads_share_a_trace() -> None:
    shapes = {"x": (NODES, 6)}
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(scores.trace(shapes))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(f is found[0] for f in found)


@pytest.mark.parametrize("change, message", [
    ({"x": None}, "x: missing"),
    ({"scale": [2.0]}, "scale: no constant; got list"),
    ({"x": torch.randn(NODES + 1, 4)}, r"x: wrong number of rows; got \[6, 4\], expected \[5, 4\]"),
    ({"weight": torch.randn(2, 4, 2)}, "weight: wrong number of rows"),
    ({"norm": torch.rand(EDGES + 1)}, "norm: wrong number of rows"),
    ({"x": torch.randn(NODES, 3)}, "x: rows do not fit the weight"),
    ({"x": torch.ones(NODES, 4, dtype=torch.int64)}, "x: wrong dtype"),
    ({"weight": torch.randn(TYPES, 4, 2).double()}, "weight: wrong dtype"),
    ({"weight": torch.empty(TYPES, 4, 2, device="meta")}, "weight: on another device"),
    ({"wieght": torch.randn(1)}, "wieght: no argument of weighted"),
])  # fmt: skip
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        weighted(relations(), **{**tensors(), **change})


def test_missing_arguments_and_wrong_functions() -> None:
    with pytest.raises(InvalidArgument, match="weight: missing"):
        weighted(relations(), x=torch.randn(NODES, 4))
    with pytest.raises(InvalidArgument, match="function: wrong signature"):
        program(lambda edge, *tables: edge)
