"""What is remembered of an index: by whom, until when, and what it saves."""

from __future__ import annotations

import gc

import pytest
import torch

from gnn_backend import config
from gnn_backend.adapters import torch_scatter
from gnn_backend.adapters.torch_scatter import place as place_module
from gnn_backend.adapters.torch_scatter.cache import MAX_GROUPS, MAX_INDICES, known
from gnn_backend.adapters.torch_scatter.place import place_of
from gnn_backend.ops.groups import Groups
from gnn_backend.profile import profile

SHUFFLED = [2, 0, 1, 0, 2, 3]


@pytest.fixture
def sorts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each index that groups were made of was sorted already."""
    made: list[bool] = []
    real = Groups.from_index

    def counted(index: torch.Tensor, count: int, *, ascending: bool) -> Groups:
        made.append(ascending)
        return real(index, count, ascending=ascending)

    monkeypatch.setattr(place_module.Groups, "from_index", counted)
    return made


@pytest.mark.parametrize("engine", ["kernels"], indirect=True)
def test_an_unsorted_index_is_sorted_at_its_second_use(engine: str, sorts: list[bool]) -> None:
    src, index = torch.ones(6, 2), torch.tensor(SHUFFLED)
    with profile() as p:
        torch_scatter.scatter_sum(src, index, 0)
    assert not p.launches and not sorts, "what is used once is not worth sorting"
    with profile() as p:
        for _ in range(3):
            torch_scatter.scatter_sum(src, index, 0)
    assert p.launches and not p.host_operators and sorts == [False]


@pytest.mark.parametrize("engine", ["kernels"], indirect=True)
def test_a_sorted_index_and_extremes_take_kernels_at_once(engine: str, sorts: list[bool]) -> None:
    src, index = torch.ones(6, 2), torch.tensor(SHUFFLED)
    with profile() as p:
        torch_scatter.scatter_sum(src, index.sort().values, 0)
        torch_scatter.scatter_max(src, index, 0)
    assert not p.host_operators and sorts == [True, False]


@pytest.mark.parametrize("engine", ["kernels"], indirect=True)
def test_views_of_one_tensor_are_known_again(engine: str, sorts: list[bool]) -> None:
    """``edge_index[1]`` is a new tensor at each call."""
    edge_index = torch.tensor([[0, 1, 2, 3, 4, 5], SHUFFLED])
    src = torch.ones(6, 2)
    for _ in range(3):
        torch_scatter.scatter_max(src, edge_index[1], 0)
        torch_scatter.scatter_max(src, edge_index[1][:, None].expand(-1, 2), 0)
    assert sorts == [False]
    assert torch.equal(torch_scatter.scatter_sum(src, edge_index[0], 0), src)
    assert torch_scatter.scatter_sum(src[:5], edge_index[1, :5], 0)[:, 0].tolist() == [2, 1, 2]
    columns = edge_index.t().contiguous()
    assert torch.equal(torch_scatter.scatter_sum(src, columns[:, 0], 0), src)


def test_an_edit_is_noticed(engine: str) -> None:
    src, index = torch.ones(6, 2), torch.tensor([0, 0, 1, 2, 2, 2])
    for _ in range(3):
        assert torch_scatter.scatter_sum(src, index, 0)[:, 0].tolist() == [2, 1, 3]
    index[0] = 3
    for _ in range(3):
        assert torch_scatter.scatter_sum(src, index, 0)[:, 0].tolist() == [1, 1, 3, 1]
    view = index[1:]
    torch_scatter.scatter_sum(src[1:], view, 0)
    view[0] = 1
    assert torch_scatter.scatter_sum(src, index, 0)[:, 0].tolist() == [0, 2, 3, 1]


def test_offsets_are_told_from_an_index(engine: str) -> None:
    both = torch.tensor([0, 1, 3])
    for _ in range(2):
        assert torch_scatter.scatter_sum(torch.ones(3), both).tolist() == [1, 1, 0, 1]
        assert torch_scatter.segment_csr(torch.ones(3), both).tolist() == [1, 2]
        assert torch_scatter.gather_csr(torch.ones(2), both).shape == (3,)


def test_a_promise_is_not_believed_by_others(engine: str) -> None:
    index = torch.tensor(SHUFFLED)
    torch_scatter.segment_sum_coo(torch.ones(6), index, dim_size=4)
    assert torch_scatter.scatter_sum(torch.ones(6), index).tolist() == [2, 1, 2, 1]


def test_engines_do_not_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists that only kernels take are not given to torch."""
    index = torch.tensor(SHUFFLED)
    with config.override(cpu_target="emulator"):
        first = torch_scatter.scatter_max(torch.arange(6.0), index)
    again = torch_scatter.scatter_max(torch.arange(6.0), index)
    assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("engine", ["kernels"], indirect=True)
def test_freed_with_the_tensor_and_bounded(engine: str) -> None:
    src, index = torch.ones(6, 2), torch.tensor(SHUFFLED)
    for size in range(4, 4 + 2 * MAX_GROUPS):
        torch_scatter.scatter_max(src, index, 0, dim_size=size)
    assert len(known(index).groups) == MAX_GROUPS
    one = torch_scatter.cached_bytes()
    assert one > 0
    for stop in range(2, 6):
        for start in range(stop):
            torch_scatter.scatter_max(src[start:stop], index[start:stop], 0)
    assert torch_scatter.cached_bytes() <= one * MAX_INDICES
    offsets = torch.tensor([0, 2, 6])
    torch_scatter.segment_csr(src, offsets)
    del index, offsets
    gc.collect()
    assert torch_scatter.cached_bytes() == 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_nothing_of_the_callers_is_held(dtype: torch.dtype) -> None:
    """Groups that held the index would keep it alive, and be kept by it."""
    index = torch.tensor([0, 0, 1], dtype=dtype)
    groups = place_of(torch.ones(3, 2), index, 0, eager=True).groups
    assert groups is not None
    own = {index.untyped_storage().data_ptr()}
    held = [groups.indptr, groups.group_of()]
    assert own.isdisjoint(t.untyped_storage().data_ptr() for t in held)


def test_inference_tensors_are_not_remembered(engine: str) -> None:
    with torch.inference_mode():
        index = torch.tensor(SHUFFLED)
        for _ in range(3):
            assert torch_scatter.scatter_sum(torch.ones(6), index).tolist() == [2, 1, 2, 1]
            torch_scatter.scatter_max(torch.ones(6), index)
        index[0] = 0
        assert torch_scatter.scatter_sum(torch.ones(6), index).tolist() == [3, 1, 1, 1]
    assert torch_scatter.cached_bytes() == 0


def test_int32_index(engine: str) -> None:
    index = torch.tensor(SHUFFLED, dtype=torch.int32)
    for _ in range(3):
        assert torch_scatter.scatter_sum(torch.ones(6), index).tolist() == [2, 1, 2, 1]
        values, arg = torch_scatter.scatter_max(torch.arange(6.0), index)
        assert values.tolist() == [3, 2, 4, 5] and arg.dtype == torch.int64


def test_under_compile(engine: str) -> None:
    index = torch.tensor(SHUFFLED)

    def step(x: torch.Tensor) -> torch.Tensor:
        softmax = torch_scatter.scatter_softmax(x, index, 0, dim_size=4)
        largest, _ = torch_scatter.scatter_max(softmax, index, 0, dim_size=4)
        return largest + torch_scatter.scatter(x, index, 0, dim_size=4, reduce="mean")

    x = torch.randn(6, 2, requires_grad=True)
    compiled = torch.compile(step, backend="aot_eager")
    want, got = step(x), compiled(x)
    torch.testing.assert_close(got, want)
    (expected,) = torch.autograd.grad(want.square().sum(), x)
    (found,) = torch.autograd.grad(got.square().sum(), x)
    torch.testing.assert_close(found, expected)
