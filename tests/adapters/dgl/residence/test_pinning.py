"""Page-locked graphs, arrays and features; what it takes no GPU to see, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dgl
import pytest
import torch
from dgl import ndarray as nd

import gnn_backend
from gnn_backend.adapters.dgl.residence import pinning
from tests.adapters.dgl.residence.places import IDTYPES, Place, heterogeneous, homogeneous


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine with a GPU; marking a graph as pinned asks nothing of it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with gnn_backend.enabled(hosts="dgl"):
        yield


@pytest.mark.parametrize("kind", [homogeneous, heterogeneous])
def test_a_pinned_copy_leaves_the_original(able: None, kind: Any) -> None:
    index = kind(torch.int64)._graph
    copied = index.pin_memory()
    assert copied.is_pinned() and not index.is_pinned()
    assert copied.pin_memory() is copied
    assert index.pin_memory_() is index and index.is_pinned()
    index.unpin_memory_()
    assert copied.is_pinned() and not index.is_pinned()
    copied.unpin_memory_()
    assert not copied.is_pinned()
    assert copied.num_edges(0) == index.num_edges(0)


@pytest.mark.parametrize("idtype", IDTYPES)
def test_formats_of_a_pinned_graph(able: None, idtype: torch.dtype) -> None:
    """What was made already stays pinned; what has to be made is not."""
    g = homogeneous(idtype)
    assert not g.formats("coo").is_pinned()
    g._graph = g._graph.pin_memory()
    for formats, pinned in (("coo", True), ("csr", False), ("csc", False),
                            (["csr", "csc"], False), (["coo", "csc"], True)):  # fmt: skip
        assert g.formats(formats).is_pinned() == pinned, formats
    kept = g.formats("coo")
    g._graph.unpin_memory_()
    assert not g.formats("coo").is_pinned()
    assert kept.is_pinned()


def test_a_graph_on_the_device_is_not_pinned(place: Place) -> None:
    with place.standing_in():
        index = place.graph(homogeneous(torch.int64))._graph
        with gnn_backend.profile() as profile:
            assert not index.is_pinned()
            assert index.unpin_memory_() is index
            for pin in (index.pin_memory, index.pin_memory_):
                with pytest.raises(dgl.DGLError, match="on the CPU can be pinned"):
                    pin()
    assert not profile.detours


class Driver:
    """Counts what is page-locked in the place of CUDA's runtime."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.locked[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


def test_arrays_are_locked_until_they_are_freed(
    able: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: self.data_ptr() in driver.locked)
    x = torch.arange(100)
    held = dgl.utils.pin_memory_inplace(x)
    assert driver.locked == {x.data_ptr(): 800}
    with pytest.raises(dgl.DGLError, match="did not pin"):
        dgl.backend.zerocopy_to_dgl_ndarray(x).unpin_memory_()
    held.unpin_memory_()
    assert not driver.locked
    held.unpin_memory_()  # of what is not page-locked: nothing to do
    held.pin_memory_()
    del held
    assert not driver.locked
    dgl.utils.pin_memory_inplace(x)
    assert not driver.locked
    dgl.utils.pin_memory_inplace(torch.empty(0)).unpin_memory_()


def test_memory_that_cannot_be_locked(able: None, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(driver, "cudaHostRegister", lambda *_: 2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: False)
    with pytest.raises(dgl.DGLError, match="800 bytes of memory: CUDA error 2"):
        dgl.utils.pin_memory_inplace(torch.arange(100))
    array = nd.array(torch.arange(4).numpy())
    with pytest.raises(dgl.DGLError):
        pinning.lock_array(array)
    pinning.unlock_array(array)


# ---------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
def test_memory_pinned_by_torch() -> None:
    with gnn_backend.enabled(hosts="dgl"):
        x = torch.arange(100)
        held = dgl.utils.pin_memory_inplace(x)
        assert x.is_pinned()
        held.unpin_memory_()
        assert not x.is_pinned()
        array = dgl.backend.zerocopy_to_dgl_ndarray(x.pin_memory())
        with pytest.raises(dgl.DGLError, match="did not pin"):
            array.unpin_memory_()


@pytest.mark.gpu
@pytest.mark.parametrize("idtype", IDTYPES)
def test_a_pinned_graph_is_sampled_on_the_device(idtype: torch.dtype) -> None:
    with gnn_backend.enabled(hosts="dgl"):
        g = homogeneous(idtype)
        g._graph = g._graph.pin_memory()
        nodes = torch.tensor([1, 4], dtype=idtype, device="cuda")
        sampled = dgl.sampling.sample_neighbors(g, nodes, -1)
        assert sampled.device.type == "cuda"
        assert sampled.num_edges() == int(g.in_degrees(nodes.cpu()).sum())
