"""One run of a script in this process: ``python -m tests.dgl_examples.worker REQUEST``.

The request is JSON, see :class:`Request`; what was recorded is written to its ``output``, as JSON.
The script's own output and exit code are this process's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODES = ("stock", "cpu", "standin", "cuda")


@dataclasses.dataclass(frozen=True)
class Request:
    """What to run.

    Attributes
    ----------
    script, output : str
        Paths of the script and of the record.
    mode : {"stock", "cpu", "standin", "cuda"}
        Without acceleration, or with it: on stock CPU graphs, on the CPU that stands in for the
        device, on CUDA.
    arguments, data, packages, names_cuda, dropout
        As in :class:`tests.dgl_examples.catalogue.Example`.
    seed : int
    """

    script: str
    output: str
    mode: str
    arguments: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    names_cuda: bool = False
    dropout: bool = True
    seed: int = 0


def run(request: Request) -> dict[str, Any]:
    """Run the script to its end and return what was recorded, in plain types."""
    import torch

    import gnn_backend
    from gnn_backend.adapters.dgl.residence import boundary
    from tests.dgl_examples import datasets, packages
    from tests.dgl_examples.recorder import Recorder

    datasets.put(request.data)
    packages.put(request.packages)
    cuda_is_cpu = request.names_cuda and request.mode != "cuda"
    started = time.perf_counter()
    with (
        _acceleration(request.mode),
        gnn_backend.profile() as profile,
        Recorder(cuda_is_cpu=cuda_is_cpu, dropout=request.dropout) as recorder,
    ):
        _seed(request.seed)
        execute(request.script, request.arguments)
    return {
        "losses": recorder.losses,
        "moments": [round(moment - recorder.moments[0], 6) for moment in recorder.moments],
        "seconds": round(time.perf_counter() - started, 3),
        "resident": sum(boundary.counts.values()),
        "device": torch.cuda.get_device_name() if request.mode == "cuda" else "cpu",
        "profile": profile.to_dict(),
    }


def execute(script: str, arguments: tuple[str, ...]) -> None:
    """Run a file as ``__main__``, its folder first on the path.

    Raises
    ------
    SystemExit
        If the script ends with a code other than 0.
    """
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise


@contextlib.contextmanager
def _acceleration(mode: str) -> Iterator[None]:
    import gnn_backend
    from gnn_backend.config import override

    if mode == "stock":
        yield
        return
    with override(residence_standin=mode == "standin"), gnn_backend.enabled(hosts="dgl"):
        yield


def _seed(seed: int) -> None:
    import dgl
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    dgl.seed(seed)


def main() -> None:
    fields = json.loads(sys.argv[1])
    lists = ("arguments", "data", "packages")
    request = Request(**{k: tuple(v) if k in lists else v for k, v in fields.items()})
    record = run(request)
    Path(request.output).write_text(json.dumps(record))


if __name__ == "__main__":
    main()
