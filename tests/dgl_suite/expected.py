"""Failures that are known: which tests, why, and where."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

MODES = ("stock", "standin", "cuda")


@dataclasses.dataclass(frozen=True)
class Known:
    """Tests that are known to fail.

    Attributes
    ----------
    id : str
        Pattern of test ids, with ``*`` and ``?``, relative to ``tests/python``.
    reason : str
        A code, explained in the file.
    when : tuple of str
        Modes of running in which it holds, of :data:`MODES`.
    flaky : bool
        Whether they may pass as well.
    """

    id: str
    reason: str
    when: tuple[str, ...]
    flaky: bool = False

    def matches(self, test: str) -> bool:
        # A bracket is part of an id here, not a set of characters.
        return fnmatch.fnmatchcase(test, self.id.replace("[", "[[]"))


@dataclasses.dataclass(frozen=True)
class Expectations:
    """The contents of ``expected.yaml``: reasons, paths that are not run, known failures."""

    reasons: dict[str, str]
    not_run: dict[str, str]
    known: tuple[Known, ...]

    def of(self, test: str, mode: str) -> Known | None:
        """What is known of a test in a mode of running."""
        found = (k for k in self.known if mode in k.when and k.matches(test))
        return next(found, None)

    def unmatched(self, tests: Sequence[str], files: Iterable[str], mode: str) -> list[str]:
        """Known ids that name no test, among those of the files that were collected."""
        files = set(files)
        return [
            k.id
            for k in self.known
            if mode in k.when
            and (k.id.partition("::")[0] in files or "*" in k.id.partition("::")[0])
            and not any(k.matches(test) for test in tests)
        ]


def read(path: Path) -> Expectations:
    """Read the file.

    Raises
    ------
    ValueError
        Naming an entry with an unknown reason, condition or key.
    """
    data = parse(path.read_text())
    reasons = data["reasons"]
    known = []
    for row in data["known"]:
        entry = Known(
            row["id"], row["reason"], tuple(row.get("when", MODES)), row.get("flaky", False)
        )
        if unknown := set(row) - {"id", "reason", "when", "flaky"}:
            raise ValueError(f"{path.name}: {entry.id}: unknown keys; got {', '.join(unknown)}, "
                             "expected id, reason, when and flaky")  # fmt: skip
        if entry.reason not in reasons:
            raise ValueError(f"{path.name}: {entry.id}: unknown reason; got {entry.reason!r}, "
                             f"expected one of {', '.join(reasons)}")  # fmt: skip
        if not entry.when or set(entry.when) - set(MODES):
            raise ValueError(f"{path.name}: {entry.id}: unknown condition; got {entry.when}, "
                             f"expected some of {', '.join(MODES)}")  # fmt: skip
        known.append(entry)
    not_run = data["not_run"]
    if wrong := set(not_run.values()) - set(reasons):
        raise ValueError(f"{path.name}: not_run: unknown reason; got {', '.join(wrong)}, "
                         f"expected one of {', '.join(reasons)}")  # fmt: skip
    return Expectations(reasons, not_run, tuple(known))


def parse(text: str) -> dict[str, Any]:
    """Read the YAML that the file is written in, so that no parser has to be installed.

    At the top are keys whose values are maps of texts, or lists of maps; a value of such a map is a
    text, ``true``, ``false`` or a list ``[a, b]``.
    """
    found: dict[str, Any] = {}
    section: Any = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.rstrip()
        if not line or line.lstrip().startswith("#"):
            continue
        key, colon, value = line.strip().removeprefix("- ").partition(": ")
        key = key if colon else key.removesuffix(":")
        if not line.startswith(" "):
            section = found[key] = [] if value.strip() == "[]" else {}
        elif line.startswith("  - "):
            if section == {}:
                section = found[list(found)[-1]] = []
            section.append({key: _value(value)})
        elif isinstance(section, list) and section and line.startswith("    "):
            section[-1][key] = _value(value)
        elif isinstance(section, dict):
            section[key] = _value(value)
        else:
            raise ValueError(f"line {number}: not understood; got {raw!r}")
    return found


def _value(text: str) -> Any:
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("[") and text.endswith("]"):
        return [part.strip() for part in text[1:-1].split(",") if part.strip()]
    return text.strip("'\"")
