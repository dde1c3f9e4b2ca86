"""The emulator, and products of float32 on its tensor cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.ops.conftest import emulator, unoptimised

__all__ = ["emulator", "unoptimised"]


@pytest.fixture
def tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before
