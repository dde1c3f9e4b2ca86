"""What is put into DGL, when it is left out, and that nothing of it stays."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import dgl
import pytest
import torch
from dgl import heterograph_index as hi
from dgl._ffi import function, libinfo
from dgl.heterograph_index import HeteroGraphIndex

import gnn_backend
from gnn_backend.adapters.dgl.residence import arrays, check, native, patch, support
from gnn_backend.adapters.dgl.residence.index import ResidentIndex
from gnn_backend.config import override
from gnn_backend.patching import registry
from tests.adapters.dgl.residence.places import homogeneous


def places() -> dict[str, Any]:
    """What each replaced attribute holds, without the descriptor protocol."""
    found = {}
    for one in patch.PATCHES:
        *path, name = one.attribute.split(".")
        owner: Any = sys.modules[one.module]
        for part in path:
            owner = getattr(owner, part)
        found[f"{one.module}.{one.attribute}"] = vars(owner).get(name, "inherited")
    return found


def copies() -> dict[str, Any]:
    """Module globals of DGL that hold a copy of what is replaced."""
    names = {one.attribute for one in patch.PATCHES if "." not in one.attribute}
    return {
        f"{module}.{name}": value
        for module, contents in list(sys.modules.items())
        if module.partition(".")[0] == "dgl"
        for name, value in list(vars(contents).items())
        if name in names and callable(value)
    }


def test_everything_is_put_in_and_taken_back() -> None:
    before = {**places(), **copies()}
    gnn_backend.enable(hosts="dgl")
    during = {**places(), **copies()}
    assert all(during[name] is not before[name] for name in places())
    assert (
        dgl.backend.zerocopy_to_dgl_ndarray
        is not before["dgl.backend.pytorch.tensor.zerocopy_to_dgl_ndarray"]
    )
    gnn_backend.disable()
    after = {**places(), **copies()}
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)


def test_seams_keep_names_and_parameters() -> None:
    before = {name: value for name, value in places().items() if callable(value)}
    with gnn_backend.enabled(hosts="dgl"):
        for name, value in places().items():
            if name in before and hasattr(before[name], "__name__"):
                assert value.__name__ == before[name].__name__
                assert inspect.signature(value) == inspect.signature(before[name])
    assert not check.check_signatures(sys.modules.get)


@pytest.mark.parametrize(
    ("chosen", "there"),
    [
        ({"hosts": "dgl"}, True),
        ({"include": "GATv2Conv"}, True),
        ({"include": "pyg.GATv2Conv"}, False),
        ({"include": "residence"}, True),
        ({"hosts": "dgl", "exclude": "residence"}, False),
        ({"hosts": "pyg"}, False),
    ],
)
def test_chosen_with_any_layer_of_dgl(chosen: dict[str, Any], there: bool) -> None:
    with gnn_backend.enabled(**chosen):
        assert ("__call__" in vars(function.Function)) == there


def test_an_unknown_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libinfo, "__version__", "9.9")
    before = places()
    with gnn_backend.enabled(hosts="dgl"):
        assert places() == before
        rows = [row for row in gnn_backend.patches() if row.symbol == "dgl.residence"]
        assert len(rows) == sum(len(one.targets) for one in patch.PATCHES)
        assert not any(row.active for row in rows)
        assert all("9.9" in row.note and "install dgl==2.1.0" in row.note for row in rows)
        assert any(row.active for row in gnn_backend.patches() if row.symbol == "dgl.GATv2Conv")


def test_a_cuda_build_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    find = function.get_global_func
    asked = []

    def found(name: str, allow_missing: bool = False) -> Any:
        asked.append(name)
        return object() if name == "device_api.cuda" else find(name, allow_missing)

    monkeypatch.setattr(function, "get_global_func", found)
    before = places()
    with gnn_backend.enabled(hosts="dgl"):
        assert places() == before
        assert "built with CUDA" in support.why_not()
    assert "device_api.cuda" in asked


def test_the_build_without_cuda_lacks_what_is_looked_for() -> None:
    """The CPU's allocator has the sister name, so the CUDA one is looked up right."""
    names = function.list_global_func_names()
    assert "device_api.cpu" in names
    assert support._CUDA_FUNCTION not in names and not support.has_cuda_build()


def test_a_dgl_that_lacks_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(native.TABLE, "_CAPI_DGLNoSuchThing", print)
    with pytest.raises(check.UnknownHost, match="_CAPI_DGLNoSuchThing"):
        check.check_names()


def test_changed_parameters_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeteroGraphIndex, "copy_to", lambda self, where: None)
    assert check.check_signatures(sys.modules.get) == [
        "dgl.heterograph_index:HeteroGraphIndex.copy_to"
    ]


def test_no_device_pointer_gets_into_the_library() -> None:
    """An array that went another way than the boundary is refused by its type."""
    array = arrays.DeviceArray(torch.arange(3))
    assert array.handle is None
    with pytest.raises(dgl.DGLError):
        hi._CAPI_DGLHeteroCreateUnitGraphFromCOO(1, 3, 3, array, array, ["coo"], False, False)
    with gnn_backend.enabled(hosts="dgl"), override(residence_standin=True):
        index = dgl.rand_graph(4, 6)._graph
    assert type(index) is ResidentIndex
    for use in (lambda: index.num_edges(0), index.reverse, lambda: index.metagraph):
        with pytest.raises(dgl.DGLError):
            use()
    with pytest.raises(AttributeError):
        _ = index.no_such_attribute


def test_graphs_on_the_cpu_stay_dgls_own() -> None:
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        g = dgl.add_self_loop(dgl.rand_graph(10, 30))
        batch = dgl.batch([g, dgl.reverse(g)])
        block = dgl.to_block(dgl.sampling.sample_neighbors(batch, [1, 2], 3))
        for one in (g, batch, block):
            assert type(one._graph) is HeteroGraphIndex
            assert type(dgl.backend.zerocopy_to_dgl_ndarray(one.edges()[0])) is dgl.ndarray.NDArray
    assert not profile.detours


def test_detours_are_shown() -> None:
    with gnn_backend.enabled(hosts="dgl"), override(residence_standin=True):
        g = dgl.rand_graph(10, 30)
        with gnn_backend.profile() as profile:
            dgl.sort_csr_by_tag(g, g.nodes() % 3)
    assert profile.detours == {"DGLHeteroSortOutEdges": 1}
    assert profile.to_dict()["detours"] == {"DGLHeteroSortOutEdges": 1}
    assert "DGLHeteroSortOutEdges x1" in str(profile)


def test_methods_are_replaced_as_their_functions_are() -> None:
    """DGL's method keeps the function that it was made of."""
    with gnn_backend.enabled(hosts="dgl"), override(residence_standin=True):
        g = dgl.graph(([0, 0, 1], [1, 1, 0]))
        with gnn_backend.profile() as profile:
            assert type(g.line_graph()._graph) is type(g.to_simple()._graph) is ResidentIndex
    assert not profile.detours


@pytest.mark.parametrize(
    ("there", "told"), [(False, "torch finds no CUDA device"), (True, "expected the CPU. Move")]
)
def test_what_dgl_has_on_cuda_alone(
    monkeypatch: pytest.MonkeyPatch, there: bool, told: str
) -> None:
    """An index of DGL's older kind is not resident, so its copy is asked of the library."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    old = dgl.graph_index.from_coo(3, [0, 1], [1, 2], True)
    with gnn_backend.enabled(hosts="dgl"):
        with pytest.raises(dgl.DGLError, match=f"ImmutableGraphCopyTo.*{told}"):
            old.copy_to(dgl.ndarray.gpu(0))
        with pytest.raises(dgl.DGLError, match="invalid vertex"):  # other errors are DGL's own
            old.successors(7)


def test_registry_names_one_layer() -> None:
    assert {one.layer for one in patch.PATCHES} == {"residence"}
    assert set(patch.PATCHES) <= set(registry.known())


def test_operators_that_stay_with_dgl_are_counted() -> None:
    """On CPU tensors; they are no calls of ours that fell back."""
    g = homogeneous(torch.int64)
    x = g.ndata["x"].requires_grad_()
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        dgl.ops.copy_u_sum(g, x).sum().backward()
        dgl.ops.edge_softmax(g, g.edata["w"])
    assert profile.calls == 0
    assert profile.host_operators["dgl.gspmm"] == 2
    assert profile.to_dict()["host_operators"] == dict(profile.host_operators)
    assert any("edge_softmax" in name for name in profile.host_operators)
    with gnn_backend.profile() as profile:
        dgl.ops.copy_u_sum(g, x)
    assert not profile.host_operators
