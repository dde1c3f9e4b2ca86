"""The CUDA C++ sources, shipped as package data.

Nothing here knows a framework: the files are compiled by NVRTC for GPUs and by g++ for the
host emulator, from the same text.
"""

from __future__ import annotations

from pathlib import Path

DIRECTORY: Path = Path(__file__).resolve().parent
"""The folder to put on a compiler's include path."""


def source(name: str) -> str:
    """Return the text of one source file.

    Parameters
    ----------
    name : str
        Path below :data:`DIRECTORY`, such as ``"functors/gatv2.cuh"``.

    Raises
    ------
    FileNotFoundError
        No such file is shipped.
    """
    return (DIRECTORY / name).read_text(encoding="utf-8")
