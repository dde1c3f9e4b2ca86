"""NVRTC: a unit becomes a cubin, with the compiler's report of registers, spills and stack.

Works without a GPU. Cubins are kept in the part ``"cubin"`` of the cache (``cache.py``) under the
hash of their whole text; ``config.kernel_path`` adds folders of cubins built elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from gnn_backend.config import get_config
from gnn_backend.errors import KernelCompileError, Unsupported
from gnn_backend.runtime.cache import writable_folder
from gnn_backend.runtime.instances import Unit, headers

_FUNCTION = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of one kernel."""

    name: str
    arch: str
    registers: int
    spill_bytes: int
    stack_bytes: int


def compile_unit(unit: Unit, arch: str) -> tuple[bytes, list[Resources]]:
    """Compile ``unit`` for ``arch`` (such as ``"sm_90"``).

    Returns
    -------
    cubin : bytes
    resources : list of Resources, one an entry

    Raises
    ------
    Unsupported
        CuPy is not installed (reason ``no-cupy``).
    KernelCompileError
        The compiler refused; its log is attached.
    """
    nvrtc = _nvrtc()
    texts = headers()
    program = nvrtc.createProgram(
        unit.source,
        f"{unit.name}.cu",
        [text.encode() for text in texts.values()],
        [name.encode() for name in texts],
    )
    options = (f"-arch={arch}", "-std=c++17", "-default-device", "--ptxas-options=-v")
    try:
        nvrtc.compileProgram(program, options)
        binary = nvrtc.getCUBIN if arch.startswith("sm_") else nvrtc.getPTX
        code = binary(program)
        code = code.encode() if isinstance(code, str) else code
        code += b"\0"  # CuPy drops the last byte, as of a C string; it belongs to the cubin
        return code, _parse_log(nvrtc.getProgramLog(program))
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise KernelCompileError(f"{unit.name} did not compile for {arch}: {error}", log) from None
    finally:
        nvrtc.destroyProgram(program)


def cubin_name(unit: Unit, arch: str) -> str:
    """File name of a cubin: what it is, for which chip, and the hash of its text."""
    return f"{unit.name}-{arch}-{unit.key}.cubin"


def cubin(unit: Unit, arch: str) -> bytes:
    """The cubin of ``unit`` for ``arch``: carried, cached on disk, or compiled now."""
    config, name = get_config(), cubin_name(unit, arch)
    cache = Path(config.cache_dir) / "cubin"
    for folder in (*config.kernel_path, cache):
        file = Path(folder) / name
        if file.is_file():
            return file.read_bytes()
    cache = writable_folder("cubin")
    with FileLock(str(cache / f"{name}.lock")):
        file = cache / name
        if not file.is_file():
            write_cubin(cache, unit, arch)
        return file.read_bytes()


def write_cubin(folder: Path, unit: Unit, arch: str) -> list[Resources]:
    """Compile ``unit`` and write it into ``folder`` in one step; returns the report."""
    code, resources = compile_unit(unit, arch)
    file = Path(folder) / cubin_name(unit, arch)
    partial = file.with_suffix(".tmp")
    partial.write_bytes(code)
    partial.replace(file)
    return resources


def target_for(capability: tuple[int, int]) -> str:
    """Compiler target of a chip: its own ``sm_XY``, or PTX where NVRTC does not know the chip.

    PTX (``compute_XY`` of the newest chip below) is finished by the driver when it is loaded.
    Without NVRTC it is the chip's own: kernels built elsewhere may be there.
    """
    wanted = capability[0] * 10 + capability[1]
    try:
        known = [a for a in _nvrtc().getSupportedArchs() if a <= wanted]
    except (Unsupported, OSError, RuntimeError):  # a missing library, in CuPy's various ways
        return f"sm_{wanted}"
    if wanted in known:
        return f"sm_{wanted}"
    if not known:
        raise Unsupported("arch-unsupported", f"compute capability {capability}")
    return f"compute_{max(known)}"


def nvrtc_version() -> tuple[int, int]:
    """Version of the NVRTC that compiles the kernels."""
    return tuple(_nvrtc().getVersion())


def _nvrtc():  # type: ignore[no-untyped-def]
    try:
        from cupy_backends.cuda.libs import nvrtc
    except ImportError as error:
        raise Unsupported("no-cupy", str(error)) from None
    return nvrtc


def _parse_log(log: str) -> list[Resources]:
    found: list[Resources] = []
    name = arch = ""
    stack = spill = 0
    for line in log.splitlines():
        if match := _FUNCTION.search(line):
            name, arch = match.groups()
        elif match := _STACK.search(line):
            stack = int(match[1])
            spill = int(match[2]) + int(match[3])
        elif (match := _REGISTERS.search(line)) and name:
            found.append(Resources(name, arch, int(match[1]), spill, stack))
            name = ""
    return found
