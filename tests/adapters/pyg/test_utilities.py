"""Reductions by an index or offsets on the device kernels, run on the host: as stock."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import gnn_backend
from gnn_backend import config

pytest.importorskip("torch_geometric")
import torch_geometric.nn as nn
import torch_geometric.utils as utils
from torch_geometric.nn import aggr

from tests.adapters.pyg.helpers import normal

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

ROWS, GROUPS, WIDTH = 40, 7, 5
UNSORTED = torch.randint(GROUPS - 1, (ROWS,), generator=torch.Generator().manual_seed(0))
SORTED = UNSORTED.sort().values
PTR = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(SORTED, minlength=GROUPS)])
PTR = PTR.cumsum(0)
X = normal(ROWS, WIDTH)

MODULES: dict[str, Callable[[], Any]] = {
    "sum": aggr.SumAggregation,
    "mean": aggr.MeanAggregation,
    "max": aggr.MaxAggregation,
    "min": aggr.MinAggregation,
    "mul": aggr.MulAggregation,
    "var": aggr.VarAggregation,
    "std": aggr.StdAggregation,
    "softmax": lambda: aggr.SoftmaxAggregation(t=0.4, learn=True),
    "softmax, by channel": lambda: aggr.SoftmaxAggregation(t=0.4, learn=True, channels=WIDTH),
    "powermean": lambda: aggr.PowerMeanAggregation(p=2.0),
    "powermean, learned": lambda: aggr.PowerMeanAggregation(p=1.0, learn=True),
    "powermean, by channel": lambda: aggr.PowerMeanAggregation(p=2.0, learn=True, channels=WIDTH),
    "several": lambda: aggr.MultiAggregation(["mean", "max", "std", "softmax"]),
    "several, learned": lambda: aggr.MultiAggregation(
        ["softmax", "powermean", aggr.SoftmaxAggregation(t=2.0, learn=True)],
        aggrs_kwargs=[{"learn": True}, {"learn": True, "p": 3.0}, {}],
    ),
}
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{
        f"scatter {r}": lambda x, i, r=r: utils.scatter(x, i, 0, GROUPS, r)
        for r in ("sum", "add", "mean", "mul", "max", "min")
    },
    "scatter, last dimensions": lambda x, i: utils.scatter(x, i, -2, GROUPS, "max"),
    "add pool": lambda x, i: nn.global_add_pool(x, i, GROUPS),
    "mean pool": lambda x, i: nn.global_mean_pool(x, i, GROUPS),
    "max pool": lambda x, i: nn.global_max_pool(x, i, GROUPS),
}


@pytest.fixture(autouse=True)
def emulator() -> Iterator[None]:
    with config.override(cpu_target="emulator"):
        yield


def gradients(function: Callable[[Tensor], Tensor], module: Any = None) -> list[Tensor]:
    x = X.clone().requires_grad_()
    out = function(x)
    wanted = [x, *(module.parameters() if isinstance(module, torch.nn.Module) else ())]
    return [out.detach(), *torch.autograd.grad(out, wanted, normal(*out.shape, seed=3))]


def check(function: Callable[[Tensor], Tensor], module: Any = None) -> None:
    want = gradients(function, module)
    with gnn_backend.enabled(mode="strict", hosts="pyg"), gnn_backend.profile() as profile:
        got = gradients(function, module)
    assert profile.accelerated == 1 and not profile.host_operators
    assert sum(profile.launches.values()) >= 2
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", MODULES)
def test_modules_with_an_index_that_is_used_again(name: str) -> None:
    module, index = MODULES[name](), UNSORTED.clone()
    with gnn_backend.enabled(hosts="pyg"):
        module(X, index, dim_size=GROUPS)  # sorted at the second use
    check(lambda x: module(x, index, dim_size=GROUPS), module)


@pytest.mark.parametrize("name", ["var", "softmax", "several"])
def test_modules_with_offsets(name: str) -> None:
    module, ptr = MODULES[name](), PTR.clone()
    if name == "several":
        module = aggr.MultiAggregation(["sum", "max"])
    check(lambda x: module(x, SORTED, ptr=ptr, dim_size=GROUPS), module)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    index = SORTED.clone()
    with gnn_backend.enabled(hosts="pyg"):
        FUNCTIONS[name](X, index)
    check(lambda x: FUNCTIONS[name](x, index))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_segment(reduce: str) -> None:
    ptr = PTR.clone()
    check(lambda x: utils.segment(x, ptr, reduce))


def test_softmax() -> None:
    index, ptr = SORTED.clone(), PTR.clone()
    with gnn_backend.enabled(hosts="pyg"):
        utils.softmax(X, index, num_nodes=GROUPS)
    check(lambda x: utils.softmax(x, index, num_nodes=GROUPS))
    check(lambda x: utils.softmax(x, ptr=ptr))
    with gnn_backend.enabled(hosts="pyg"):
        utils.softmax(X.T, index, num_nodes=GROUPS, dim=1)
    check(lambda x: utils.softmax(x.T, index, num_nodes=GROUPS, dim=-1).T)


ADJACENCY = torch.sparse_coo_tensor(
    torch.stack([SORTED, torch.arange(ROWS)]), normal(ROWS, seed=4), (GROUPS + 1, ROWS)
).coalesce()


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
@pytest.mark.parametrize("reduce", ["sum", "add", "mean", "max", "min"])
@pytest.mark.filterwarnings("ignore:Converting sparse tensor")
def test_products(reduce: str, layout: torch.layout) -> None:
    matrix = ADJACENCY.to_sparse(layout=layout)
    if layout == torch.sparse_coo:
        matrix = matrix.coalesce()
    check(lambda x: utils.spmm(matrix, x, reduce))


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_products_with_ties_and_nan(reduce: str) -> None:
    entries = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 2, 1, 3]])
    matrix = torch.sparse_coo_tensor(entries, torch.ones(5), (3, 4)).to_sparse_csr()
    x = torch.tensor([[2.0, 1.0], [2.0, torch.nan], [2.0, 3.0], [0.0, 0.0]])

    def run() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        out = utils.spmm(matrix, leaf, reduce)
        return [out.detach(), *torch.autograd.grad(out[:, 0].sum(), leaf)]

    want = run()
    with gnn_backend.enabled(mode="strict", hosts="pyg"), gnn_backend.profile() as profile:
        got = run()
    assert profile.accelerated == 1
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_layers_on_an_adjacency_multiply_by_kernels() -> None:
    square = torch.sparse_coo_tensor(
        torch.stack([SORTED, torch.arange(ROWS)]), torch.ones(ROWS), (ROWS, ROWS)
    ).to_sparse_csr()
    torch.manual_seed(0)
    conv = nn.SAGEConv(WIDTH, 4)
    want = conv(X, square)
    with gnn_backend.enabled(hosts="pyg"), gnn_backend.profile() as profile:
        got = conv(X, square)
    torch.testing.assert_close(got, want)
    assert dict(profile.reasons) == {"adjacency": 1}
    assert profile.by_symbol["pyg.spmm"].accelerated == 1 and profile.launches


def test_offsets_that_leave_rows_out_are_torchs() -> None:
    ptr = PTR[:-2].clone()  # the last group is empty
    with gnn_backend.enabled(hosts="pyg"), gnn_backend.profile() as profile:
        utils.segment(X, ptr, "sum")
    assert profile.calls == 0


def test_one_dimension() -> None:
    ptr = PTR.clone()
    got = X[:, 0].clone().requires_grad_()
    with gnn_backend.enabled(hosts="pyg"), gnn_backend.profile() as profile:
        out = utils.segment(got, ptr, "sum")
    assert profile.accelerated == 1
    torch.testing.assert_close(out, utils.segment(got, ptr, "sum"))


def test_an_index_that_is_edited_is_read_anew() -> None:
    index = SORTED.clone()
    with gnn_backend.enabled(hosts="pyg"):
        for _ in range(2):
            utils.scatter(X, index, 0, GROUPS, "sum")
        index[0] = GROUPS - 1
        for _ in range(2):
            got = utils.scatter(X, index, 0, GROUPS, "sum")
    torch.testing.assert_close(got, utils.scatter(X, index, 0, GROUPS, "sum"))


HOSTS: dict[str, Callable[[], Any]] = {
    "one-off, unsorted": lambda: utils.scatter(X, UNSORTED.clone(), 0, GROUPS, "sum"),
    "any": lambda: utils.scatter(X, SORTED, 0, GROUPS, "any"),
    "integers": lambda: utils.scatter(X.long(), SORTED, 0, GROUPS, "sum"),
    "sparse gradients": lambda: utils.spmm(
        ADJACENCY.to_sparse_csr().requires_grad_(), X.new_ones(ROWS, 1), "sum"
    ).detach(),
    "a transposed matrix": lambda: utils.spmm(ADJACENCY.to_sparse_csc(), X, "sum"),
    "another dimension": lambda: utils.scatter(X.T.contiguous(), SORTED, 1, GROUPS, "sum"),
}


@pytest.mark.parametrize("case", HOSTS)
def test_what_has_no_kernel_is_the_hosts(case: str) -> None:
    want = HOSTS[case]()
    with gnn_backend.enabled(mode="strict", hosts="pyg"), gnn_backend.profile() as profile:
        assert torch.equal(HOSTS[case](), want)
    assert profile.host_operators and profile.fallbacks == 0


def test_the_cpu_target_leaves_them_to_torch() -> None:
    with (
        config.override(cpu_target="numba"),
        gnn_backend.enabled(hosts="pyg"),
        gnn_backend.profile() as profile,
    ):
        for _ in range(3):
            utils.scatter(X, SORTED, 0, GROUPS, "sum")
    assert profile.calls == 0 and profile.host_operators["pyg.scatter"] == 3


def test_bad_arguments_give_the_stock_error() -> None:
    with gnn_backend.enabled(hosts="pyg"):
        with pytest.raises(ValueError, match="one-dimensional"):
            utils.scatter(X, SORTED[:, None], 0, GROUPS, "sum")
        with pytest.raises(ValueError, match="Encountered invalid"):
            aggr.VarAggregation()(X, SORTED, dim=5)


def test_parts_of_a_module_without_kernel_run_on_kernels() -> None:
    module, ptr = aggr.SoftmaxAggregation(semi_grad=True), PTR.clone()
    want = gradients(lambda x: module(x, ptr=ptr))
    with gnn_backend.enabled(hosts="pyg"), gnn_backend.profile() as profile:
        got = gradients(lambda x: module(x, ptr=ptr))
    assert set(profile.by_symbol) == {"pyg.softmax", "pyg.segment"}
    assert dict(profile.host_operators) == {"pyg.SoftmaxAggregation": 1}
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def test_exact_undo() -> None:
    import torch_geometric.nn.aggr.base as base

    original = base.scatter
    with gnn_backend.enabled(hosts="pyg"):
        assert base.scatter is not original and utils.scatter is base.scatter
    assert base.scatter is original and utils.scatter is original
