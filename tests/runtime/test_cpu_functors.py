"""A second functor is one small file: GAT and dot-product attention run by the same template."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.ops.functors import Functor
from gnn_backend.runtime import cpu, cpu_module
from tests.runtime.cpu_cases import assert_close, reference, run, skewed_graph

FOLDER = Path(__file__).parent / "numba_functors"


def _dot(edges, operands, scalars):
    return (operands["k_src"][edges.src] * operands["q_dst"][edges.dst]).sum(-1) * scalars["scale"]


def _gat(edges, operands, scalars):
    sums = (operands["el"][edges.src] + operands["er"][edges.dst])[..., 0]
    return torch.nn.functional.leaky_relu(sums, scalars["negative_slope"])


def _functor(name, src, dst, scalar, value, score):
    return Functor(name, src, dst, (), (scalar,), value, score, cuda_header="", cuda_type="")


CASES = {
    "dot": (
        _functor("dot", ("k_src", "v_src"), ("q_dst",), "scale", "v_src", _dot),
        {"k_src": 12, "v_src": 20, "q_dst": 12},
        {"scale": 0.3},
        "v_src",
    ),
    "gat": (
        _functor("gat", ("el", "x_src"), ("er",), "negative_slope", "x_src", _gat),
        {"el": 1, "x_src": 18, "er": 1},
        {"negative_slope": 0.2},
        "x_src",
    ),
}


@pytest.fixture
def extra_functors(monkeypatch):
    monkeypatch.setattr(cpu_module, "functor_path", lambda name: FOLDER / f"{name}.py")


@pytest.fixture(params=[1, 1 << 20], ids=["split", "whole"])
def block_work(request, monkeypatch):
    monkeypatch.setattr(cpu, "BLOCK_WORK", request.param)


def _operands(graph, functor, widths):
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(
            graph.num_dst if name in functor.dst else graph.num_src,
            2,
            width,
            generator=generator,
            dtype=torch.float64,
        )
        for name, width in widths.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(extra_functors, block_work, name):
    functor, widths, scalars, value = CASES[name]
    graph = skewed_graph()
    operands = _operands(graph, functor, widths)
    expected = reference(graph, operands, scalars, functor=functor, value=value)
    got = run(graph, operands, scalars, functor=functor, value=value)
    assert_close(got, expected, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("needed", [("k_src",), ("v_src",), ("q_dst", "v_src")])
def test_subsets_of_gradients(extra_functors, needed):
    functor, widths, scalars, value = CASES["dot"]
    graph = skewed_graph()
    operands = _operands(graph, functor, widths)
    expected = run(graph, operands, scalars, functor=functor, value=value)
    got = run(graph, operands, scalars, functor=functor, value=value, needs=frozenset(needed))
    assert set(got) == {"out", *needed}
    assert all(torch.equal(got[name], expected[name]) for name in got)


def test_unknown_functor_is_named():
    with pytest.raises(InvalidArgument, match="functor: no Numba source; got nothing_like_it"):
        cpu_module.functor_path("nothing_like_it")
