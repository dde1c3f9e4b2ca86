"""The one configuration object; environment variables are read here and nowhere else."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from gnn_backend.errors import invalid

CHOICES = {
    "mode": ("auto", "strict", "verify"),
    "cpu_target": ("numba", "emulator"),
    "attention_path": ("auto", "rows", "tiles"),
    "aggregation_path": ("auto", "rows", "cusparse", "tiles"),
    "reorder": ("none", "auto", "natural", "degree", "rcm", "community"),
    "log": ("debug", "info", "warning", "error"),
}
_LANE_ORDERS = "forward, reversed, random or random:SEED"


def _home() -> Path:
    """The home directory, or one that is not there where the user has none."""
    try:
        return Path.home()
    except RuntimeError:  # a container's user without an entry in passwd
        return Path("/nonexistent")


@dataclasses.dataclass
class Config:
    """Settings of the running process.

    Attributes
    ----------
    mode : {"auto", "strict", "verify"}
        What ``enable()`` without a mode uses. ``GNN_BACKEND_MODE``.
    cache_dir : Path
        Where compiled kernels are kept. ``GNN_BACKEND_CACHE_DIR``.
    cpu_target : {"numba", "emulator"}
        Where operators on CPU tensors run. ``GNN_BACKEND_CPU_TARGET``.
    kernel_path : tuple of Path
        Further directories with prebuilt cubins, searched before the compiler is asked.
        ``GNN_BACKEND_KERNEL_PATH``, separated as in ``PATH``.
    verify_rtol : float
        Largest relative difference that ``mode="verify"`` accepts for float32.
        ``GNN_BACKEND_VERIFY_RTOL``.
    min_edges : int
        Graphs with fewer edges run the stock code (reason ``too-small``).
        ``GNN_BACKEND_MIN_EDGES``.
    attention_path : {"auto", "rows", "tiles"}
        Whether dot-product attention goes over the rows of the graph or, where there are kernels
        for it, over tiles on tensor cores; ``auto`` takes what is predicted to be faster.
        ``GNN_BACKEND_ATTENTION_PATH``.
    aggregation_path : {"auto", "rows", "cusparse", "tiles"}
        Whether sums and means on a GPU go over the rows of the graph, through cuSPARSE, or over
        tiles on tensor cores, where these can take them; ``auto`` takes what is predicted to be
        faster. ``GNN_BACKEND_AGGREGATION_PATH``.
    reorder : {"none", "auto", "natural", "degree", "rcm", "community"}
        Order in which rows are gone over, of graphs that were not reordered by hand; ``auto``
        decides on CUDA, by graph; see :mod:`gnn_backend.runtime.reordering`.
        ``GNN_BACKEND_REORDER``.
    autotune : bool
        Measure launch settings on the first call of a kind instead of taking the fitted ones, and
        remember them in ``cache_dir``; see :mod:`gnn_backend.runtime.autotune`.
        ``GNN_BACKEND_AUTOTUNE`` (0 or 1).
    log : {"debug", "info", "warning", "error"}
        Level of the ``gnn_backend`` logger. ``GNN_BACKEND_LOG``.
    test_data : Path or None
        Folder of larger graphs, for tests only. ``GNN_BACKEND_TEST_DATA``.
    emulator_lane_order : str
        Order in which the emulator runs lanes: forward, reversed, random or random:SEED.
        ``GNN_BACKEND_EMULATOR_LANE_ORDER``.
    emulator_sanitize : bool
        Build emulated kernels with AddressSanitizer and UBSan, whose libraries must be preloaded.
        ``GNN_BACKEND_EMULATOR_SANITIZE`` (0 or 1).
    residence_standin : bool
        Let the CPU stand in for CUDA where DGL graphs are made resident, so that every DGL graph
        made is; for tests only. ``GNN_BACKEND_RESIDENCE_STANDIN`` (0 or 1).
    revision : int
        Grows with every change, so that what was decided by these settings can be kept until then.
    """

    revision: ClassVar[int]  # counted for each object, and no setting

    mode: str = "auto"
    cache_dir: Path = _home() / ".cache" / "gnn_backend"
    cpu_target: str = "numba"
    kernel_path: tuple[Path, ...] = ()
    verify_rtol: float = 2e-5
    min_edges: int = 0
    attention_path: str = "auto"
    aggregation_path: str = "auto"
    reorder: str = "none"
    autotune: bool = False
    log: str = "warning"
    test_data: Path | None = None
    emulator_lane_order: str = "forward"
    emulator_sanitize: bool = False
    residence_standin: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        self.__dict__["revision"] = self.__dict__.get("revision", 0) + 1

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise invalid(name, "unknown value", repr(value), f"one of {', '.join(choices)}")
        if not self.verify_rtol > 0:
            raise invalid("verify_rtol", "not positive", self.verify_rtol, "a number above 0")
        if self.min_edges < 0:
            raise invalid("min_edges", "negative", self.min_edges, "a count of edges")
        if not re.fullmatch(r"forward|reversed|random(:\d+)?", self.emulator_lane_order):
            order = repr(self.emulator_lane_order)
            raise invalid("emulator_lane_order", "unknown order", order, _LANE_ORDERS)

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> Config:
        """Read the variables ``GNN_BACKEND_<FIELD>``; an empty one counts as unset.

        Raises
        ------
        InvalidArgument
            Naming the variable, if its value is not one of the accepted ones.
        """
        env = os.environ if env is None else env
        settings: dict[str, Any] = {}
        for name, (parse, expected) in _VARIABLES.items():
            variable = f"GNN_BACKEND_{name.upper()}"
            if text := env.get(variable, ""):
                try:
                    settings[name] = parse(text)
                    cls(**{name: settings[name]})
                except (ValueError, RuntimeError):  # RuntimeError: no home directory for a ~
                    raise invalid(
                        f"environment variable {variable}", "not accepted", repr(text), expected,
                        "Correct it, or unset it for the default.",
                    ) from None  # fmt: skip
        return cls(**settings)


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(_path(part) for part in text.split(os.pathsep) if part)


def _flag(text: str) -> bool:
    return ("0", "1").index(text) == 1


def _one_of(name: str) -> str:
    return f"one of {', '.join(CHOICES[name])}"


_PATH = "a path; ~ stands for a home directory that exists"
#: Setting -> how its variable is read, and what is accepted.
_VARIABLES: dict[str, tuple[Callable[[str], Any], str]] = {
    "mode": (str, _one_of("mode")),
    "cache_dir": (_path, _PATH),
    "cpu_target": (str, _one_of("cpu_target")),
    "kernel_path": (_paths, f"paths separated by {os.pathsep!r}"),
    "verify_rtol": (float, "a number above 0"),
    "min_edges": (int, "a count of edges, 0 or more"),
    "attention_path": (str, _one_of("attention_path")),
    "aggregation_path": (str, _one_of("aggregation_path")),
    "reorder": (str, _one_of("reorder")),
    "autotune": (_flag, "0 or 1"),
    "log": (str.lower, _one_of("log")),
    "test_data": (_path, _PATH),
    "emulator_lane_order": (str, _LANE_ORDERS),
    "emulator_sanitize": (_flag, "0 or 1"),
    "residence_standin": (_flag, "0 or 1"),
}

config = Config.from_environment()
logging.getLogger("gnn_backend").setLevel(config.log.upper())


def get_config() -> Config:
    """Return the process-wide configuration."""
    return config


@contextlib.contextmanager
def override(**settings: Any) -> Iterator[Config]:
    """Change settings inside a ``with`` block; they are put back on leaving it.

    Raises
    ------
    InvalidArgument
        If a setting is unknown or its value is not accepted.
    """
    unknown = set(settings) - {field.name for field in dataclasses.fields(Config)}
    if unknown:
        raise invalid("settings", "unknown", ", ".join(sorted(unknown)), "fields of Config")
    dataclasses.replace(config, **settings)  # checks the values
    saved = {name: getattr(config, name) for name in settings}
    for name, value in settings.items():
        setattr(config, name, value)
    try:
        yield config
    finally:
        for name, value in saved.items():
            setattr(config, name, value)
