"""The places where graphs are resident: the CPU that stands in for the device, and CUDA."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

if importlib.util.find_spec("dgl") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def resident() -> Iterator[None]:
    """DGL accelerated until the last test of a file: switching reads the names of all modules."""
    import gnn_backend

    with gnn_backend.enabled(hosts="dgl"):
        yield


@pytest.fixture(autouse=True)
def _stock_between_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    """In place of the one for all tests: stock after a test that has no place."""
    import gnn_backend

    yield
    if "place" not in request.fixturenames:
        gnn_backend.disable()


@pytest.fixture(params=["STANDIN", pytest.param("CUDA", marks=pytest.mark.gpu)], ids=str.lower)
def place(request: pytest.FixtureRequest, resident: None) -> Any:
    """A :class:`tests.adapters.dgl.residence.places.Place`, with acceleration on."""
    import gnn_backend
    from tests.adapters.dgl.residence import places

    if not gnn_backend.is_enabled():  # a test without a place went before
        gnn_backend.enable(hosts="dgl")
    return getattr(places, request.param)
