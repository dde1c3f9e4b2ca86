"""The executable cases of ``tests/cases/cases.py`` on each engine that this machine has."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch

from gnn_backend import config
from gnn_backend.profile import profile
from tests import cases_adapter
from tests.cases import cases

#: What an engine may decline, and why. Anything else that is declined is a failure.
DECLINED = {
    "dot_value_width_differs": "keys and values of different widths (head-dim)",
    "dot_huge_products": "as dot_value_width_differs",
}
#: The CUDA kernels have no float64; they run on the GPU and on the emulator.
DECLINED_CUDA = {
    **DECLINED,
    "gatv2_float64": "no float64 in the CUDA kernels (dtype-float64)",
    "gatv2_double_backward": "the case is in float64 (dtype-float64)",
}
#: Cases without a launch: there is nothing to compute.
NO_LAUNCH = {
    "gatv2_returned_attention_no_edges",
    "gatv2_no_edges",
    "gatv2_no_nodes",
    "gatv2_zero_width",
}

_BY_NAME = {fn.__name__: fn for fn in cases.CASES}
_OPERATORS = {
    name: getattr(cases_adapter, name) for name in cases.REF if hasattr(cases_adapter, name)
}
_BUILT: dict[str, cases.Case] = {}


def _names(*, cuda: bool = False) -> list[str]:
    """Cases of the operators that we have; those for CUDA alone only where asked for."""
    found = []
    for name, fn in _BY_NAME.items():
        if name.startswith(("gatv2", "gat_", "dot_")) and not fn.big and (cuda or not fn.cuda_only):
            found.append(name)
    return found


def _case(name: str) -> cases.Case:
    if name not in _BUILT:
        _BUILT[name] = _BY_NAME[name]("cpu")
    return _BUILT[name]


def _judge(name: str, device: str, declined: dict[str, str]) -> int:
    """Run one case, expect its verdict, and return the kernel launches that it made."""
    try:
        case = _case(name) if device == "cpu" else _BY_NAME[name](device)
    except cases.Skip as reason:
        pytest.skip(str(reason))
    with profile() as record:
        if name in declined:
            with pytest.raises((cases.Declined, NotImplementedError)):
                cases.judge(_OPERATORS[case.op], case)
        else:
            cases.judge(_OPERATORS[case.op], case)
    return sum(record.launches.values())


@pytest.mark.parametrize("name", _names())
@pytest.mark.sampled(3)
def test_numba(name: str) -> None:
    with config.override(cpu_target="numba"):
        launches = _judge(name, "cpu", DECLINED)
    assert launches > 0 or name in NO_LAUNCH or name in DECLINED


@pytest.fixture
def emulator() -> Iterator[None]:
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels with")
    with config.override(cpu_target="emulator"):
        yield


@pytest.mark.parametrize("name", _names())
@pytest.mark.sampled(3)
def test_emulator(name: str, emulator: None) -> None:
    launches = _judge(name, "cpu", DECLINED_CUDA)
    assert launches > 0 or name in NO_LAUNCH or name in DECLINED_CUDA


@pytest.mark.gpu
@pytest.mark.parametrize("name", _names(cuda=True))
def test_cuda(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    _judge(name, "cuda", DECLINED_CUDA)


@pytest.mark.parametrize("change", ["value", "tensor", "sources"])
def test_graph_of_changed_edges_is_rebuilt(change: str) -> None:
    case = cases.gatv2_bf16("cpu")
    indptr, indices = case.inputs["indptr"], case.inputs["indices"]
    first = cases_adapter._graph(indptr, indices, 30)
    assert cases_adapter._graph(indptr, indices, 30) is first
    num_src = 30
    if change == "value":
        indices[0] = (indices[0] + 1) % 30
    elif change == "tensor":
        indptr = indptr.clone()
    else:
        num_src = 40
    again = cases_adapter._graph(indptr, indices, num_src)
    assert again is not first
    assert again.num_src == num_src and int(again.by_dst.indices[0]) == int(indices[0])
