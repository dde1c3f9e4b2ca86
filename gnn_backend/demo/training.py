"""One run of a training script in a process of its own, stock or accelerated.

    python -m gnn_backend.demo.training '{"script": "examples/...", "accelerate": true, ...}'

The scripts hold the line that turns acceleration on. A stock run leaves out its call and keeps
the import, which patches nothing and lets DGL load; nothing else differs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from gnn_backend.errors import GNNBackendError, invalid

ENABLE_LINE = "import gnn_backend; gnn_backend.enable()"
STOCK_LINE = "import gnn_backend"


@dataclasses.dataclass(frozen=True)
class Request:
    """What to run.

    Attributes
    ----------
    script : str
        Path of a script with :data:`ENABLE_LINE` in it, whose last printed line is JSON.
    accelerate : bool
        Whether to keep the enable line.
    arguments : tuple of str
        Its command line; ``--json`` and ``--device`` are added.
    device : str
        Where it trains, and where memory is measured.
    """

    script: str
    accelerate: bool
    arguments: tuple[str, ...] = ()
    device: str = "cpu"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run printed, and what it took.

    Attributes
    ----------
    result : dict
        The script's own JSON line: losses, accuracy, seconds_per_step, ...
    peak_bytes : int or None
        Memory above the level before training, loading the data included: resident growth on
        the CPU (None where the system does not tell it), torch's allocator on a GPU. An earlier
        run of one epoch warmed the process up.
    accelerated, fallbacks, launches : int
        Calls that ran our kernels, calls that fell back, and kernel launches.
    reasons : dict of str to int
        Reason codes of the fallbacks.
    differences : dict of str to float
        Accelerated run only: max|difference| / max|reference| of the first layer's output and
        of each gradient against the stock layer, at the initial weights.
    """

    result: dict[str, Any]
    peak_bytes: int | None
    accelerated: int
    fallbacks: int
    launches: int
    reasons: dict[str, int]
    differences: dict[str, float]


def load_script(path: Path, accelerate: bool) -> CodeType:
    """Compile a script with its enable line as it is, or with the bare import in its place.

    Raises
    ------
    InvalidArgument
        If the script does not hold the enable line exactly once.
    """
    text = path.read_text(encoding="utf-8")
    found = text.count(ENABLE_LINE)
    if found != 1:
        raise invalid("script", f"{path} must hold the enable line once", found, ENABLE_LINE)
    return compile(text if accelerate else text.replace(ENABLE_LINE, STOCK_LINE), path, "exec")


def train(request: Request) -> Outcome:
    """Run the request in a fresh process.

    Raises
    ------
    GNNBackendError
        If the script fails; the message ends with what it wrote to standard error.
    """
    body = json.dumps(dataclasses.asdict(request))
    done = subprocess.run(
        [sys.executable, "-m", "gnn_backend.demo.training", body],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stderr.splitlines()[-15:])
        raise GNNBackendError(f"{request.script} failed (exit code {done.returncode}):\n{tail}")
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def train_here(request: Request) -> Outcome:
    """Run the request in this process; see :func:`train`."""
    import gnn_backend
    from gnn_backend import memory

    path = Path(request.script)
    code = load_script(path, request.accelerate)
    arguments = [*request.arguments, "--device", request.device, "--json"]
    _execute(code, path, [*arguments, "--epochs", "1"])

    results: list[dict[str, Any]] = []
    on_gpu = request.device.startswith("cuda")
    peak_of: Callable[..., int | None] = memory.resident_growth
    if on_gpu:
        peak_of = memory.cuda_peak_bytes
    with gnn_backend.profile() as record:
        peak = peak_of(lambda: results.append(_execute(code, path, arguments)))
    return Outcome(
        result=results[0],
        peak_bytes=peak,
        accelerated=record.accelerated,
        fallbacks=record.fallbacks,
        launches=sum(record.launches.values()),
        reasons=dict(record.reasons),
        differences=_differences(code, path, arguments) if request.accelerate else {},
    )


def _execute(code: CodeType, path: Path, arguments: list[str]) -> dict[str, Any]:
    """Run a script as ``__main__`` and return its last line, decoded."""
    sys.argv = [str(path), *arguments]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {"__name__": "__main__", "__file__": str(path)})
    return json.loads(printed.getvalue().splitlines()[-1])


def _differences(code: CodeType, path: Path, arguments: list[str]) -> dict[str, float]:
    """Compare the first layer that the script calls with stock, at its initial weights.

    Empty if the layer fell back: stock against stock says nothing.
    """
    import gnn_backend

    layer, inputs = _first_call(code, path, arguments)
    found = gnn_backend.compare(layer, *inputs, repeats=1)
    return found.max_rel_error if found.accelerated else {}


class _FirstCall(Exception):
    """Carries a module and its inputs out of a script."""


def _first_call(
    code: CodeType, path: Path, arguments: list[str], layer: str = "GATv2Conv"
) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """Run the script up to its first call of a layer, and return that layer and its inputs."""

    def stop(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if type(module).__name__ == layer:
            raise _FirstCall(module, inputs)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(stop)
    try:
        _execute(code, path, arguments)
    except _FirstCall as found:
        return found.args[0], found.args[1]
    finally:
        handle.remove()
    raise invalid("script", f"{path} calls no such layer", layer, f"one call of {layer}")


if __name__ == "__main__":
    fields = json.loads(sys.argv[1])
    fields["arguments"] = tuple(fields["arguments"])
    print(json.dumps(dataclasses.asdict(train_here(Request(**fields)))))
