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
        return _matches(self.id, test)


def _matches(pattern: str, test: str) -> bool:
    # A bracket is part of an id here, not a set of characters.
    return fnmatch.fnmatchcase(test, pattern.replace("[", "[[]"))


@dataclasses.dataclass(frozen=True)
class Expectations:
    """The contents of ``expected.yaml``.

    Attributes
    ----------
    reasons : dict of str
        What each code means.
    not_run : dict of str
        Paths that are left out, each with its reason.
    serial : dict of str
        Patterns of tests, each with its reason. Those of one reason must not run beside each other.
    known : tuple of Known
    """

    reasons: dict[str, str]
    not_run: dict[str, str]
    known: tuple[Known, ...]
    serial: dict[str, str] = dataclasses.field(default_factory=dict)

    def group(self, test: str) -> int | None:
        """Number of the group of tests, from 0, of which none may run beside another."""
        groups = list(dict.fromkeys(self.serial.values()))
        found = (groups.index(why) for key, why in self.serial.items() if _matches(key, test))
        return next(found, None)

    def of(self, test: str, mode: str) -> Known | None:
        """What is known of a test in a mode of running."""
        found = (k for k in self.known if mode in k.when and k.matches(test))
        return next(found, None)

    def unmatched(self, tests: Sequence[str], files: Iterable[str], mode: str) -> list[str]:
        """Ids of the list that name no test, among those of the files that were collected."""
        files = set(files)
        return [
            pattern
            for pattern in (*(k.id for k in self.known if mode in k.when), *self.serial)
            if ((file := pattern.partition("::")[0]) in files or "*" in file)
            and not any(_matches(pattern, test) for test in tests)
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
    tables = {name: data.get(name, {}) for name in ("not_run", "serial")}
    for name, table in tables.items():
        if wrong := set(table.values()) - set(reasons):
            raise ValueError(f"{path.name}: {name}: unknown reason; got {', '.join(wrong)}, "
                             f"expected one of {', '.join(reasons)}")  # fmt: skip
    return Expectations(reasons, known=tuple(known), **tables)


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
