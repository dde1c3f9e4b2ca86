"""A pytest plugin that keeps the outcome of every test, for results in a JSON file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

_SAVED_EVERY = 5.0  # seconds, so that a run cut short leaves its results


class Results:
    """Outcomes by test id.

    Parameters
    ----------
    output : Path or None
        Where :meth:`results` goes as JSON, now and then and at the end.
    device : bool
        Wait for the GPU after each test, so that an error of the device is found in the test that
        made it; the run ends there, for nothing works after one.
    """

    def __init__(self, output: Path | None, device: bool) -> None:
        self.output, self.device = output, device
        self.outcomes: dict[str, str] = {}
        self.messages: dict[str, str] = {}
        self.aborted = ""
        self.started = self.saved = time.perf_counter()

    def name(self, item: pytest.Item) -> str:
        return item.nodeid

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Any:
        report = (yield).get_result()
        name = self.name(item)
        if report.failed:
            self.outcomes[name] = "failed"
            where = report.longrepr
            crash = getattr(where, "reprcrash", None)
            place = f" ({crash.path}:{crash.lineno})" if crash else ""
            text = f"{call.excinfo.typename}: {call.excinfo.value}"[:300]
            self.messages.setdefault(name, text + place)
        elif report.skipped:
            self.outcomes.setdefault(name, "skipped")
        elif call.when == "call":
            self.outcomes.setdefault(name, "passed")
        if report.when == "teardown" and time.perf_counter() - self.saved > _SAVED_EVERY:
            self.save()

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if not self.device:
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            name = self.name(item)
            self.aborted = f"{name}: {error}"[:300]
            self.outcomes[name] = "failed"
            self.messages[name] = str(error)[:300]
            pytest.exit(f"the device is lost: {self.aborted}", returncode=3)

    def pytest_sessionfinish(self) -> None:
        self.save()

    def of(self, outcome: str) -> list[str]:
        return [name for name, found in self.outcomes.items() if found == outcome]

    def results(self) -> dict[str, Any]:
        """Everything, in plain types."""
        failed = self.of("failed")
        return {
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "seconds": round(time.perf_counter() - self.started, 1),
            "passed": len(self.of("passed")),
            "failed": len(failed),
            "skipped": len(self.of("skipped")),
            "failures": {name: self.messages[name] for name in failed},
            "aborted": self.aborted,
        }

    def save(self) -> None:
        if self.output is not None:
            whole = self.output.with_suffix(".tmp")  # a process that is ended may be at it
            whole.write_text(json.dumps(self.results(), indent=1))
            whole.replace(self.output)
            self.saved = time.perf_counter()
