from collections.abc import Iterator
from pathlib import Path

import pytest

from gnn_backend import config


@pytest.fixture(scope="session")
def emulator_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulator-cache")


@pytest.fixture(autouse=True)
def own_cache(emulator_cache: Path) -> Iterator[None]:
    """Compile everything anew, once a session: an old library must not hide a broken header."""
    with config.override(cache_dir=emulator_cache):
        yield
