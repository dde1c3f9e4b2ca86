"""Settings, their environment variables, and their checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gnn_backend
from gnn_backend import config
from gnn_backend.config import Config, get_config
from gnn_backend.errors import InvalidArgument
from gnn_backend.patching import registry


def test_defaults_and_environment():
    assert Config.from_environment({}) == Config()
    read = Config.from_environment(
        {
            "GNN_BACKEND_MODE": "strict",
            "GNN_BACKEND_CACHE_DIR": "~/kernels",
            "GNN_BACKEND_CPU_TARGET": "emulator",
            "GNN_BACKEND_KERNEL_PATH": f"/a{os.pathsep}{os.pathsep}/b",
            "GNN_BACKEND_VERIFY_RTOL": "1e-3",
            "GNN_BACKEND_MIN_EDGES": "100",
            "GNN_BACKEND_LOG": "DEBUG",
            "GNN_BACKEND_TEST_DATA": "",
        }
    )
    assert read == Config(
        mode="strict",
        cache_dir=Path.home() / "kernels",
        cpu_target="emulator",
        kernel_path=(Path("/a"), Path("/b")),
        verify_rtol=1e-3,
        min_edges=100,
        log="debug",
        test_data=None,
    )


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("GNN_BACKEND_MODE", "fast", "auto, strict, verify"),
        ("GNN_BACKEND_CPU_TARGET", "gpu", "numba, emulator"),
        ("GNN_BACKEND_MIN_EDGES", "few", "'few', expected a count"),
        ("GNN_BACKEND_MIN_EDGES", "-1", "'-1', expected a count"),
        ("GNN_BACKEND_VERIFY_RTOL", "0", "'0', expected a number above 0"),
        ("GNN_BACKEND_VERIFY_RTOL", "nan", "'nan', expected a number above 0"),
        ("GNN_BACKEND_LOG", "loud", "debug, info, warning, error"),
        ("GNN_BACKEND_CACHE_DIR", "~no-such-user-here/kernels", "~no-such-user-here.*a path"),
        ("GNN_BACKEND_EMULATOR_LANE_ORDER", "random:x", "random:SEED"),
        ("GNN_BACKEND_EMULATOR_SANITIZE", "yes", "0 or 1"),
        ("GNN_BACKEND_EMULATOR_SANITIZE", "2", "0 or 1"),
    ],
)
def test_bad_variable_is_named(variable, value, message):
    with pytest.raises(InvalidArgument, match=f"{variable}.*{message}.*unset it") as caught:
        Config.from_environment({variable: value})
    assert str(caught.value).count("got ") == 1


def test_environment_is_read_at_import():
    script = "from gnn_backend.config import get_config; print(get_config().mode)"
    env = {**os.environ, "GNN_BACKEND_MODE": "verify"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "verify", done.stderr


def test_without_a_home_directory(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert config._home().is_absolute() and not config._home().exists()


def test_override_puts_settings_back():
    before = get_config().min_edges
    with pytest.raises(KeyError), config.override(min_edges=7, log="info") as inside:
        assert inside is get_config() and inside.min_edges == 7
        raise KeyError
    assert get_config().min_edges == before


def test_override_checks_names_and_values():
    with pytest.raises(InvalidArgument, match="colour"), config.override(colour="red"):
        pass
    with pytest.raises(InvalidArgument, match="mode"), config.override(mode="fast"):
        pass
    assert get_config().mode == "auto"


def test_mode_of_the_environment_holds_for_plain_enable(fake):
    with config.override(mode="strict"):
        gnn_backend.enable()
        assert registry.state.mode == "strict"
        gnn_backend.enable(mode="verify")
        assert registry.state.mode == "verify"
