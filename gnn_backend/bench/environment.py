"""What is installed here: versions, the GPU and whether driver, NVRTC and architecture match."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Name shown -> distributions that provide it, the first one installed counts.
_DISTRIBUTIONS = {
    "torch": ("torch",),
    "numpy": ("numpy",),
    "numba": ("numba",),
    "tbb": ("tbb",),
    "dgl": ("dgl",),
    "torch_geometric": ("torch_geometric",),
    "torch_scatter": ("torch_scatter",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "turbo_gnn": ("turbo_gnn",),
}


OLDEST_ARCH = 80  # that the kernels are written for


def versions() -> dict[str, str | None]:
    """Version of everything that takes part; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name, candidates in _DISTRIBUTIONS.items():
        found[name] = next(filter(None, map(distribution_version, candidates)), None)
    found["gnn_backend"] = distribution_version("gnn_backend") or "checkout"
    nvrtc = nvrtc_version()
    found["nvrtc"] = None if nvrtc is None else ".".join(map(str, nvrtc))
    found["driver"] = nvidia_driver()
    found["cuda_of_driver"] = _dotted(driver_cuda_version())
    found["g++"] = compiler_version()
    return found


def document(
    benchmark: str, settings: Mapping[str, Any], device: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What every result begins with: benchmark, date, device, versions and settings.

    Of a path among the settings only the name is kept.
    """
    return {
        "benchmark": benchmark,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": device,
        "versions": versions(),
        "settings": {k: v.name if isinstance(v, Path) else v for k, v in settings.items()},
    }


def distribution_version(name: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def compiler_version() -> str | None:
    """Version of the g++ on the PATH, or None."""
    path = shutil.which("g++")
    if path is None:
        return None
    answer = subprocess.run([path, "-dumpfullversion"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


def nvrtc_version() -> tuple[int, int] | None:
    """(major, minor) of the NVRTC that CuPy loads; None without CuPy or NVRTC."""
    try:
        from cupy.cuda import nvrtc

        return tuple(nvrtc.getVersion())
    except Exception:  # a broken CuPy raises whatever its libraries raise
        return None


def nvrtc_archs() -> list[int]:
    """Architectures that this NVRTC compiles for, as 80, 90, ..."""
    try:
        from cupy.cuda import nvrtc

        return [int(arch) for arch in nvrtc.getSupportedArchs()]
    except Exception:  # see nvrtc_version
        return []


def driver_cuda_version() -> tuple[int, int] | None:
    """(major, minor) of CUDA that the installed driver supports; None without a driver."""
    try:
        from cupy.cuda import runtime

        version = runtime.driverGetVersion()
    except Exception:  # no CuPy, or it finds no CUDA libraries
        return None
    return (version // 1000, version % 1000 // 10) if version else None


def nvidia_driver() -> str | None:
    """Version of the NVIDIA kernel driver, such as 580.65.06; None without one."""
    with contextlib.suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
        return found.group(1) if found else None
    return None


def device_report() -> dict[str, Any] | None:
    """Name, architecture and memory of the current CUDA device; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": properties.name,
        "arch": f"sm_{properties.major}{properties.minor}",
        "memory_bytes": properties.total_memory,
        "count": torch.cuda.device_count(),
    }


def cpu_report() -> dict[str, Any]:
    """Name of the processor and the threads that torch uses."""
    import torch

    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        name = found.group(1) if found else name
    return {"name": name, "threads": torch.get_num_threads()}


def gpu_match() -> dict[str, Any]:
    """Whether NVRTC can compile for the device and the driver can load what it makes.

    ``target`` is the device's own architecture where NVRTC knows it; else PTX of the newest one
    below it (``compute_XY``), which the driver finishes. A driver loads machine code of its own
    major CUDA version and of earlier ones, and PTX of its own version and earlier ones.
    ``match`` is None where there is no device.
    """
    device, nvrtc, driver = device_report(), nvrtc_version(), driver_cuda_version()
    report: dict[str, Any] = {
        "device": device,
        "nvrtc": _dotted(nvrtc),
        "driver_cuda": _dotted(driver),
        "nvrtc_archs": [f"sm_{arch}" for arch in nvrtc_archs()],
        "target": None,
        "match": None,
    }
    if device is not None:
        report["target"] = target = _target(int(device["arch"][3:]))
        report["match"] = _loads(target, nvrtc, driver)
    return report


def compile_target() -> str | None:
    """What to try the compiler on, among the architectures that this NVRTC supports.

    That of the current device as the runtime would choose it, without a device the oldest one
    that the kernels are for; None where there is none.
    """
    device = device_report()
    if device is not None:
        return _target(int(device["arch"][3:]))
    fitting = [arch for arch in nvrtc_archs() if arch >= OLDEST_ARCH]
    return f"sm_{min(fitting)}" if fitting else None


def _target(arch: int) -> str | None:
    """What the runtime would compile for a device; None where no known architecture fits."""
    known = nvrtc_archs()
    if arch in known:
        return f"sm_{arch}"
    lower = [other for other in known if other < arch]
    return f"compute_{max(lower)}" if lower else None


def _loads(
    target: str | None, nvrtc: tuple[int, int] | None, driver: tuple[int, int] | None
) -> bool:
    if target is None or nvrtc is None or driver is None:
        return False
    return nvrtc[0] <= driver[0] if target.startswith("sm_") else nvrtc <= driver


def _dotted(version: tuple[int, int] | None) -> str | None:
    return None if version is None else f"{version[0]}.{version[1]}"
