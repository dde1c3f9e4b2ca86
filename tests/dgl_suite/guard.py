"""Runs a shard in a process of its own, and goes on after a test that hangs or ends the process.

The process names the test that it is at in a file, and saves its results now and then. A test that
has run for too long is ended with everything that it started, and is a failure; so is one that the
process did not survive. Another process takes the tests that have no result yet.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.dgl_suite import summary

DEVICE_LOST = 3  # what the process returns after an error that no later test survives
START_SECONDS = 300  # for imports and collection, of several shards at once
GRACE_SECONDS = 20  # beyond the limit of a test, which pytest-timeout ends where it can
_END = "end"
_POLL_SECONDS = 0.1


class Progress:
    """The plugin that names the test that runs, and leaves out those that are done.

    Parameters
    ----------
    folder : Path
        Shared with the process that watches this one.
    name : callable
        Test id of an item.
    """

    def __init__(self, folder: Path, name: Callable[[pytest.Item], str]) -> None:
        self.file, self.name = folder / "current", name
        self.done = set(json.loads((folder / "done.json").read_text()))

    @pytest.hookimpl(trylast=True)  # once the tests are those of the shard
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self.name(item) not in self.done]

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.file.write_text(self.name(item))
        yield

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self.file.write_text(_END)


class Shard:
    """One shard, in as many processes as it takes.

    Parameters
    ----------
    arguments : list of str
        The command line of ``python -m tests.dgl_suite``.
    limit : float
        Seconds that a test may take.
    known : callable
        Test id -> reason why it is expected to fail, or None.
    """

    def __init__(
        self, arguments: list[str], limit: float, known: Callable[[str], str | None]
    ) -> None:
        self.arguments, self.limit, self.known = arguments, limit + GRACE_SECONDS, known
        self.found: dict[str, Any] = {}
        self.outcomes: dict[str, str] = {}

    def run(self) -> None:
        """Run all tests; ``found`` has the results so far at any time."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            while True:
                (folder / "done.json").write_text(json.dumps(list(self.outcomes)))
                for left in ("current", "part.json"):
                    (folder / left).unlink(missing_ok=True)
                try:
                    why = self._process(folder)
                finally:
                    at = _current(folder)
                    part = folder / "part.json"
                    found = json.loads(part.read_text()) if part.exists() else None
                    self._take(found)
                if not why:
                    return
                if at in ("", _END):
                    self.found["aborted"] = why
                    return
                summary.lose(self.found, self.outcomes, at, why, self.known(at))

    def _take(self, found: dict[str, Any] | None) -> None:
        """Add the results that one process saved."""
        if found is None:
            return
        self.outcomes |= found.pop("outcomes")
        found["aborted"] = ""  # another process goes on
        self.found = summary.joined(self.found, found)

    def _process(self, folder: Path) -> str:
        """Run until the end, or until a test takes too long; why it was not the end."""
        command = [sys.executable, "-m", "tests.dgl_suite", *self.arguments]
        command += ["--progress", str(folder)]
        with subprocess.Popen(command, start_new_session=True) as process:
            try:
                return self._watch(process, folder)
            finally:
                end_group(process)

    def _watch(self, process: subprocess.Popen[bytes], folder: Path) -> str:
        at, since = "", time.monotonic()
        while process.poll() is None:
            time.sleep(_POLL_SECONDS)
            limit = self.limit if at else START_SECONDS
            if (now := _current(folder)) != at:
                at, since = now, time.monotonic()
            elif time.monotonic() - since > limit:
                return "" if at == _END else f"hung: ended after {limit:.0f} s"
        return self._ending(process.returncode, _current(folder) == _END)

    def _ending(self, code: int, whole: bool) -> str:
        """Why a process that ended by itself did so, if not since all was done."""
        if code == DEVICE_LOST:
            return "the device was lost"
        none_left = code == pytest.ExitCode.NO_TESTS_COLLECTED and bool(self.outcomes)
        if whole and (none_left or code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)):
            return ""
        how = signal.Signals(-code).name if code < 0 else f"code {code}"
        return f"its process ended ({how})"


def _current(folder: Path) -> str:
    file = folder / "current"
    return file.read_text() if file.exists() else ""


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group, with all of the group, which may outlive it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
