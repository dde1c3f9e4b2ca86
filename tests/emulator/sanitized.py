"""Run Python with emulated kernels under AddressSanitizer and UndefinedBehaviorSanitizer.

``python -m tests.emulator.sanitized -m pytest tests/ops`` runs ``python -m pytest tests/ops`` in a
process with the sanitizers' libraries preloaded and ``emulator_sanitize`` on. The first fault ends
that process with a report on stderr and a non-zero status.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gnn_backend.runtime.emulator import find_compiler

ROOT = Path(__file__).resolve().parents[2]


def sanitizer_libraries() -> list[str]:
    """Paths to preload; empty where the compiler has no sanitizers.

    libstdc++ is among them because libasan, loaded first, must find its ``__cxa_throw``.
    """
    paths = []
    for name in ("libasan.so", "libubsan.so", "libstdc++.so.6"):
        command = [find_compiler(), f"-print-file-name={name}"]
        path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(path).is_absolute():  # the bare name: not found
            return []
        paths.append(path)
    return paths


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables of a sanitized process."""
    options = "detect_leaks=0:abort_on_error=0:exitcode=99:detect_stack_use_after_return=0"
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "LD_PRELOAD": ":".join(sanitizer_libraries()),
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=99",
        "GNN_BACKEND_EMULATOR_SANITIZE": "1",
        "GNN_BACKEND_CPU_TARGET": "emulator",
        "PYTHONPATH": python_path,
        **(extra or {}),
    }


def run_python(
    arguments: Sequence[str],
    *,
    extra: Mapping[str, str] | None = None,
    timeout: float = 600,
    capture: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS`` under the sanitizers, in the repository's root."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(extra),
        cwd=ROOT,
        capture_output=capture,
        text=True,
        timeout=timeout,
    )


def main() -> int:
    if not sanitizer_libraries():
        print("the compiler has no libasan.so or libubsan.so; install g++'s sanitizers")
        return 2
    return run_python(sys.argv[1:], capture=False, timeout=3600).returncode


if __name__ == "__main__":
    raise SystemExit(main())
