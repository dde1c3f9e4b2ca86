"""The one configuration object; environment variables are read here and nowhere else."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@dataclasses.dataclass
class Config:
    """Settings of the running process.

    Attributes
    ----------
    mode : {"auto", "strict", "verify"}
        What an ineligible call does: fall back, raise, or run both and compare.
    cache_dir : Path
        Where compiled kernels are kept.
    cpu_target : {"numba", "emulator"}
        Where operators on CPU tensors run.
    kernel_path : tuple of Path
        Further directories with prebuilt cubins, searched before the compiler is asked.
    verify_rtol : float
        Largest relative difference that ``mode="verify"`` accepts for float32.
    emulator_lane_order : str
        Order in which the emulator runs lanes: forward, reversed, random or random:SEED.
    emulator_sanitize : bool
        Build emulated kernels with AddressSanitizer and UBSan (libasan must be preloaded).
    """

    mode: str = "auto"
    cache_dir: Path = Path.home() / ".cache" / "gnn_backend"
    cpu_target: str = "numba"
    kernel_path: tuple[Path, ...] = ()
    verify_rtol: float = 2e-5
    emulator_lane_order: str = "forward"
    emulator_sanitize: bool = False

    @classmethod
    def from_environment(cls) -> Config:
        env = os.environ
        path = env.get("GNN_BACKEND_KERNEL_PATH", "")
        return cls(
            mode=env.get("GNN_BACKEND_MODE", "auto"),
            cache_dir=Path(env.get("GNN_BACKEND_CACHE_DIR", cls.cache_dir)).expanduser(),
            cpu_target=env.get("GNN_BACKEND_CPU_TARGET", "numba"),
            kernel_path=tuple(Path(p).expanduser() for p in path.split(os.pathsep) if p),
            emulator_lane_order=env.get("GNN_BACKEND_EMULATOR_LANE_ORDER", "forward"),
            emulator_sanitize=env.get("GNN_BACKEND_EMULATOR_SANITIZE", "0") not in ("", "0"),
        )


config = Config.from_environment()


def get_config() -> Config:
    """Return the process-wide configuration."""
    return config


@contextlib.contextmanager
def override(**settings: Any) -> Iterator[Config]:
    """Change settings inside a ``with`` block; they are put back on leaving it."""
    saved = {name: getattr(config, name) for name in settings}
    for name, value in settings.items():
        setattr(config, name, value)
    try:
        yield config
    finally:
        for name, value in saved.items():
            setattr(config, name, value)
