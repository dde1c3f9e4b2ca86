"""The package imports in full from a wheel, an editable install and a bare checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools", "77", reason="building a wheel here needs setuptools >= 77")

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("gnn_backend", "adapters", "kernels", "pyproject.toml", "README.md", "LICENSE")
KERNEL_SUFFIXES = {".cuh", ".cu", ".h", ".hpp", ".cpp"}

IMPORTS = """
import importlib.util, pathlib, sys
import gnn_backend, gnn_backend.adapters.dgl, gnn_backend.adapters.pyg, gnn_backend.kernels
base = pathlib.Path(sys.argv[1]).resolve()
assert base in pathlib.Path(gnn_backend.__file__).resolve().parents, gnn_backend.__file__
assert gnn_backend.kernels.DIRECTORY.is_dir()
print(sorted(p.name for p in gnn_backend.kernels.DIRECTORY.rglob("*.cuh")))
"""

# Hides an editable install of the running environment, then adds one of the test's own.
ADD_EDITABLE = """
import site, sys
sys.meta_path[:] = [f for f in sys.meta_path if "__editable__" not in str(f)]
for name in [n for n in sys.modules if n.startswith("__editable__")]:
    del sys.modules[name]
sys.path.insert(0, {site!r})
site.addsitedir({site!r})
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run ``command`` with no PYTHONPATH but the given one; return what it printed."""
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged, symlinks kept, so that builds leave nothing behind here."""
    copy = tmp_path_factory.mktemp("checkout")
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SHIPPED:
        origin = ROOT / name
        if origin.is_dir():
            shutil.copytree(origin, copy / name, symlinks=True, ignore=skip)
        else:
            shutil.copy(origin, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheels(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The plain and the editable wheel, built by the project's own build backend."""
    folder = tmp_path_factory.mktemp("wheels")
    script = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    built = {}
    for hook in ("build_editable", "build_wheel"):
        printed = run(sys.executable, "-c", script, hook, folder / hook, cwd=checkout)
        built[hook] = folder / hook / printed.splitlines()[-1]
    return built


def test_wheel_holds_every_file_under_one_top_level_name(wheels: dict[str, Path]) -> None:
    names = set(zipfile.ZipFile(wheels["build_wheel"]).namelist())
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"gnn_backend"}

    wanted = {"gnn_backend/py.typed"}
    for folder in (
        ROOT / "gnn_backend",
        ROOT / "gnn_backend/adapters",
        ROOT / "gnn_backend/kernels",
    ):
        wanted |= {str(path.relative_to(ROOT)) for path in folder.rglob("*.py")}
    for path in (ROOT / "kernels").rglob("*"):
        if path.suffix in KERNEL_SUFFIXES:
            wanted.add(str("gnn_backend" / path.relative_to(ROOT)))
    assert wanted <= names, sorted(wanted - names)
    assert any(name.startswith("gnn_backend/adapters/pyg/") for name in names)


def test_wheel_holds_files_not_links_and_imports(wheels: dict[str, Path], tmp_path: Path) -> None:
    archive = zipfile.ZipFile(wheels["build_wheel"])
    archive.extractall(tmp_path / "site")
    sources = [info for info in archive.infolist() if "gnn_backend/kernels/" in info.filename]
    assert sources and all((info.external_attr >> 16) & 0o170000 != 0o120000 for info in sources)
    site = tmp_path / "site"
    run(sys.executable, "-c", IMPORTS, site, cwd=tmp_path, PYTHONPATH=str(site))


def test_editable_install_follows_the_checkout(
    wheels: dict[str, Path], checkout: Path, tmp_path: Path
) -> None:
    zipfile.ZipFile(wheels["build_editable"]).extractall(tmp_path / "site")
    begin = ADD_EDITABLE.format(site=str(tmp_path / "site"))
    run(sys.executable, "-c", begin + IMPORTS, checkout, cwd=tmp_path)
    exposed = "import importlib.util as u; print(u.find_spec('adapters'), u.find_spec('kernels'))"
    assert run(sys.executable, "-c", begin + exposed, cwd=tmp_path).split() == ["None", "None"]


def test_checkout_runs_from_pythonpath_alone(checkout: Path, tmp_path: Path) -> None:
    run(sys.executable, "-c", IMPORTS, checkout, cwd=tmp_path, PYTHONPATH=str(checkout))
