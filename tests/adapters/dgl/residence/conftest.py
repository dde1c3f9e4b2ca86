"""The places where graphs are resident: the CPU that stands in for the device, and CUDA."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.adapters.dgl.residence.places import CUDA, STANDIN, Place


@pytest.fixture(params=[STANDIN, pytest.param(CUDA, marks=pytest.mark.gpu)], ids=lambda p: p.name)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A place, with acceleration on."""
    with request.param.entered():
        yield request.param
