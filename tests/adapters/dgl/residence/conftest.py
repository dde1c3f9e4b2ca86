"""The places where graphs are resident: the CPU that stands in for the device, and CUDA."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

if importlib.util.find_spec("dgl") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(params=["STANDIN", pytest.param("CUDA", marks=pytest.mark.gpu)], ids=str.lower)
def place(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A :class:`tests.adapters.dgl.residence.places.Place`, with acceleration on."""
    from tests.adapters.dgl.residence import places

    chosen = getattr(places, request.param)
    with chosen.entered():
        yield chosen
