"""The tutorial's code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[1] / "docs" / "programs.md"


def test_the_layer_of_the_tutorial(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile(source, str(TUTORIAL), "exec"), scope)
    assert scope["out"].shape == (3, 4)  # type: ignore[attr-defined]
    assert "(destination, edge type)" in capsys.readouterr().out
