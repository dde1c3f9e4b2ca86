"""The pytest plugin: shards, known failures, what ran on resident graphs, and the summary."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import gnn_backend
from gnn_backend.adapters.dgl.residence import boundary
from gnn_backend.config import config
from tests.dgl_suite import summary
from tests.dgl_suite.expected import Expectations, Known
from tests.results import Results


def leave_nothing_behind() -> None:
    """End the processes and the process group of a test that was cut short.

    They would keep the port that later tests want, which would wait for it in vain.
    """
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class Suite(Results):
    """Runs one shard of DGL's tests in one mode.

    Parameters
    ----------
    mode : {"cuda", "standin", "stock"}
    shard : (int, int)
        Number of this shard, from 1, and how many there are.
    expectations : Expectations
    root : Path
        ``tests/python`` of the checkout.
    output : Path
        Where the results go as JSON.
    """

    def __init__(
        self,
        mode: str,
        shard: tuple[int, int],
        expectations: Expectations,
        root: Path,
        output: Path,
    ) -> None:
        super().__init__(output, device=mode == "cuda")
        self.mode, self.shard, self.root = mode, shard, root
        self.expectations = expectations
        self.resident: set[str] = set()
        self.operated: set[str] = set()
        self.detours: Counter[str] = Counter()
        self.unmatched: list[str] = []
        self._standin = config.residence_standin

    def name(self, item: pytest.Item) -> str:
        """Test id relative to ``tests/python``."""
        test = item.nodeid.partition("::")[2]
        return f"{item.path.relative_to(self.root).as_posix()}::{test}"

    def pytest_configure(self) -> None:
        if self.mode != "stock":
            config.residence_standin = self.mode == "standin"
            gnn_backend.enable(hosts="dgl")

    def pytest_unconfigure(self) -> None:
        gnn_backend.disable()
        config.residence_standin = self._standin

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        try:
            relative = collection_path.relative_to(self.root).as_posix()
        except ValueError:
            return None
        return True if relative in self.expectations.not_run else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        names = [self.name(item) for item in items]
        files = {name.partition("::")[0] for name in names}
        self.unmatched = self.expectations.unmatched(names, files, self.mode)
        items[:] = self._of_shard(items, names)

    def pytest_collection_finish(self) -> None:
        self.save()  # something to add to, should the process not survive its first test

    def _of_shard(self, items: list[pytest.Item], names: list[str]) -> list[pytest.Item]:
        """This shard's tests: a serial group is in one shard, others go where are fewest."""
        number, shards = self.shard
        groups = [self.expectations.group(name) for name in names]
        sizes = [0] * shards
        for group in groups:
            if group is not None:
                sizes[group % shards] += 1
        kept = []
        for item, group in zip(items, groups, strict=True):
            place = sizes.index(min(sizes)) if group is None else group % shards
            sizes[place] += group is None
            if place == number - 1:
                kept.append(item)
        # What is flaky comes last: it takes long, and may break what runs after it.
        return sorted(
            kept, key=lambda item: (k := self.known(self.name(item))) is not None and k.flaky
        )

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        before = Counter(boundary.counts)
        with gnn_backend.profile() as profile:
            yield
        leave_nothing_behind()
        name = self.name(item)
        ran = {key for key, count in boundary.counts.items() if count > before[key]}
        if ran:
            self.resident.add(name)
        if any(not key.startswith("_CAPI") for key in ran) or profile.accelerated:
            self.operated.add(name)
        self.detours += profile.detours

    def known(self, name: str) -> Known | None:
        return self.expectations.of(name, self.mode)

    def results(self) -> dict[str, Any]:
        """Everything, in plain types."""
        known = {name: self.known(name) for name in self.outcomes}
        failed = [name for name in self.of("failed") if known[name] is None]
        expected = [name for name in self.of("failed") if known[name] is not None]
        passes = [n for n in self.of("passed") if (k := known[n]) is not None and not k.flaky]
        return {
            **super().results(),
            "mode": self.mode,
            "shard": list(self.shard),
            "failed": len(failed),
            "failed as expected": len(expected),
            "on resident graphs": len(self.resident),
            "accelerated": len(self.operated),
            "areas": summary.by_area(self.outcomes, expected),
            "reasons": dict(Counter(known[name].reason for name in expected)),  # type: ignore[union-attr]
            "failures": {name: self.messages[name] for name in failed},
            "expected failures": {name: self.messages[name] for name in expected},
            "unexpected passes": passes,
            "unmatched": self.unmatched,
            "detours": dict(self.detours.most_common()),
            "outcomes": self.outcomes,
        }
