"""``run``: an unmodified script or module with acceleration on."""

from __future__ import annotations

import contextlib
import runpy
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from gnn_backend.cli import output

MODES = ("auto", "strict", "verify")
_INTERRUPTED = 130


def run(
    target: Annotated[str, typer.Argument(metavar="SCRIPT", help="Script, or module with -m.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="Passed on, options included."),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module.")] = False,
    mode: Annotated[
        str | None,
        typer.Option(help="auto, strict or verify; default: GNN_BACKEND_MODE, else auto."),
    ] = None,
    profile: Annotated[bool, typer.Option(help="Print the profile on stderr at the end.")] = False,
) -> None:
    """Run an unmodified script with acceleration enabled around it.

    The script sees its own sys.argv, runs as __main__ with its directory on sys.path, and its
    exit code is kept. Processes that it starts with the "spawn" method run without acceleration
    unless they call gnn_backend.enable() themselves.
    """
    if mode is not None:
        output.check_choice("--mode", mode, MODES)
    if not module and not Path(target).exists():
        output.fail(f"can't open {target!r}: no such file (a module's name needs -m)")
    from gnn_backend import enabled
    from gnn_backend.config import get_config

    with _profiled(profile), enabled(mode=mode or get_config().mode):
        code = _execute(target, arguments or [], module)
        _wait_for_threads()
    raise SystemExit(code)


def _execute(target: str, arguments: list[str], module: bool) -> object:
    """Run to the end and return what ``sys.exit`` would be given."""
    sys.argv = [target, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path.cwd()) if module else str(Path(target).resolve().parent)
    try:
        if module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    except SystemExit as stop:
        return stop.code
    except BaseException as error:
        error.__traceback__ = _from_the_script_on(error.__traceback__)
        if error.__traceback__ is None and isinstance(error, ImportError):  # it never started
            output.fail(f"can't run {target!r}: {error}")
        sys.excepthook(type(error), error, error.__traceback__)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _wait_for_threads() -> None:
    """Let the script's threads end while acceleration is on, as Python waits for them at exit."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _from_the_script_on(trace: TracebackType | None) -> TracebackType | None:
    """The traceback less the frames of this command; None if the script never started."""
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


@contextlib.contextmanager
def _profiled(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    from gnn_backend import profile

    with profile() as record:
        try:
            yield
        finally:
            sys.stdout.flush()
            output.console(stderr=True).print(record.table())
