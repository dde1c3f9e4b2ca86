"""Units: names, entries, and keys that follow every text that is compiled."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnn_backend import kernels
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.runtime import instances
from gnn_backend.runtime.instances import Unit, all_units, merge_unit, softmax_unit, weights_unit
from gnn_backend.runtime.options import Options
from gnn_backend.runtime.selection import (
    DTYPE_NAMES,
    Pass,
    Schedule,
    schedule_for,
    shape_for,
    shapes_with_features,
)

SHAPE = shape_for("f32", 2, 64)


def unit_of(name: str, dtype: str = "f32", heads: int = 2, dim: int = 64) -> Unit:
    functor = FUNCTORS[name]
    return softmax_unit(functor.cuda_type, functor.cuda_header, dtype, shape_for(dtype, heads, dim))


def gatv2_unit(dtype: str = "f32", heads: int = 2, dim: int = 64) -> Unit:
    return unit_of("gatv2", dtype, heads, dim)


@pytest.fixture
def copied_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "kernels"
    shutil.copytree(kernels.DIRECTORY, folder)
    monkeypatch.setattr(kernels, "DIRECTORY", folder)
    instances.headers.cache_clear()
    yield folder
    monkeypatch.undo()
    instances.headers.cache_clear()


def test_every_entry_is_in_its_text_once() -> None:
    units = all_units()
    entries = [entry for unit in units for entry in unit.entries]
    assert len(set(entries)) == len(entries)
    assert len({unit.name for unit in units}) == len(units)
    for unit in units:
        for entry in unit.entries:
            assert unit.source.count(f"({entry},") == 1
            assert entry.startswith(unit.name)


def test_every_call_has_its_unit() -> None:
    names = {unit.name for unit in all_units()}
    for dtype in DTYPE_NAMES.values():
        assert merge_unit(dtype).name in names
        for heads in (1, 2, 3, 5, 8, 16, 32):
            for dim in (1, 2, 3, 7, 8, 12, 16, 33, 40, 64, 127, 256, 300, 512, 520, 1023, 1024):
                for name in FUNCTORS:
                    assert unit_of(name, dtype, heads, dim).name in names, (dtype, heads, dim)


def test_a_unit_is_built_once() -> None:
    assert gatv2_unit() is gatv2_unit() and merge_unit("f16") is merge_unit("f16")


def test_a_schedule_of_ones_own_has_another_key() -> None:
    shipped = softmax_unit("GATv2", "functors/gatv2.cuh", "f32", SHAPE)
    same = softmax_unit("GATv2", "functors/gatv2.cuh", "f32", SHAPE, schedule_for("f32", SHAPE))
    tuned = Schedule(Pass(1), Pass(1), Pass(1))
    other = softmax_unit("GATv2", "functors/gatv2.cuh", "f32", SHAPE, tuned)
    assert same.key == shipped.key != other.key


def test_options_name_their_units() -> None:
    """Every set of options has a unit of its own, and none has the name of another."""
    functor, units = FUNCTORS["dot"], {}
    for flags in itertools.product((False, True), repeat=5):
        for features, shared, query, aggregate in (
            (0, *[False] * 3),
            (16, *[True] * 3),
            (16, True, True, False),
            (64, *[True] * 3),
        ):
            options = Options(*flags, features, shared, query, aggregate)
            shape, fragment = SHAPE, None
            if features:
                shape, fragment = shapes_with_features("f32", 2, 64, features)
            form = (functor.cuda_type, functor.cuda_header, "f32", shape)
            unit = softmax_unit(*form, None, options, fragment)
            assert (units.setdefault(unit.name, unit)).source == unit.source
            assert unit.entries[0].endswith("backward_dst" if options.cotangent else "forward")
            units[f"{unit.name}_weights"] = weights_unit(*form, options, fragment)
    assert len(units) == 2 * 4 * 2**5


def test_headers_are_those_of_the_sources() -> None:
    names = set(instances.headers())
    assert {"common.cuh", "merge.cuh", "ptx.cuh", "functors/gatv2.cuh"} <= names
    assert not any(name.startswith("emulator/") for name in names)
    for unit in all_units():
        included = [line.split('"')[1] for line in unit.source.splitlines() if "#include" in line]
        assert included and set(included) <= names


def test_an_edited_header_changes_every_key(copied_headers: Path) -> None:
    def keys() -> list[str]:
        instances.headers.cache_clear()
        units = (merge_unit("f32"), gatv2_unit())
        return [Unit(u.name, u.entries, u.source).key for u in units]

    first = keys()
    header = copied_headers / "functors" / "gatv2.cuh"
    text = header.read_text()
    header.write_text(text + "// one more line\n")
    edited = keys()
    assert all(a != b for a, b in zip(first, edited, strict=True))
    header.write_text(text)
    assert keys() == first
    (copied_headers / "new.cuh").write_text("// a new header\n")
    assert all(a != b for a, b in zip(first, keys(), strict=True))
