from collections.abc import Iterator

import pytest

from gnn_backend import config


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile everything anew: an old library must not hide a broken header."""
    with config.override(cache_dir=tmp_path_factory.mktemp("emulator-cache")):
        yield
