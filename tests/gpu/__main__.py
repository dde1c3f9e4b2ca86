"""Run the GPU tests without pytest: ``python -m tests.gpu [TEXT]``, those whose name has TEXT."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator

import torch

from tests import gpu
from tests.gpu import support


def collect() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every test with every row of its tables."""
    for info in pkgutil.iter_modules(gpu.__path__):
        if not info.name.startswith("test_"):
            continue
        module = importlib.import_module(f"tests.gpu.{info.name}")
        for name, test in list(vars(module).items()):  # looking may import more
            if name.startswith("test_") and callable(test):
                yield from _rows(f"{info.name}.{name}", test)


def _rows(name: str, test: Callable[..., None]) -> Iterator[tuple[str, Callable[[], None]]]:
    tables = getattr(test, "tables", [])
    for rows in itertools.product(*(rows for _, rows in tables)):
        values: dict[str, object] = {}
        for (names, _), row in zip(tables, rows, strict=True):
            values |= zip(names, row if len(names) > 1 else [row], strict=True)
        shown = f"[{', '.join(f'{k}={v}' for k, v in values.items())}]" if values else ""
        yield name + shown, lambda v=values: test(**v)


def _skips() -> tuple[type[BaseException], ...]:
    if support.pytest is None:
        return (support.Skipped,)
    return (support.Skipped, support.pytest.skip.Exception)


def main(text: str = "") -> int:
    if reason := support.missing():
        print(f"0 passed, 0 failed: {reason}")
        return 0
    passed, failed, skipped = 0, 0, 0
    slowest: list[tuple[float, str]] = []
    started = time.perf_counter()
    for name, test in collect():
        if text not in name:
            continue
        start = time.perf_counter()
        try:
            test()
            torch.cuda.synchronize()
            passed += 1
        except _skips() as why:
            skipped += 1
            print(f"SKIPPED {name}: {why}")
        except Exception as error:
            failed += 1
            print(f"FAILED {name}: {type(error).__name__}: {str(error)[:400]}")
            for frame in traceback.extract_tb(error.__traceback__)[-2:]:
                print(f"    {frame.filename}:{frame.lineno}: {frame.line}")
        slowest.append((time.perf_counter() - start, name))
    for seconds, name in sorted(slowest, reverse=True)[:5]:
        print(f"{seconds:7.2f} s  {name}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped in "
          f"{time.perf_counter() - started:.0f} s")  # fmt: skip
    return failed > 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:2]))
