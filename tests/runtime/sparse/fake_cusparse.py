"""A stand-in for cuSPARSE that multiplies tables in the CPU's memory, by their addresses."""

from __future__ import annotations

import ctypes
import itertools
import threading
from typing import Any

import numpy as np


def read(address: int, count: int, kind: Any) -> np.ndarray:
    """An array that lies at an address."""
    kind = np.dtype(kind)
    memory = (ctypes.c_byte * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(memory, kind)


class FakeLibrary:
    """The interface of ``cusparse_library.Library``, with what was asked of it.

    Attributes
    ----------
    alive : set of int
        Descriptors that were not freed.
    workspaces, streams : list
        Workspaces and streams of the products so far.
    """

    workspace = 40

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.alive: set[int] = set()
        self.workspaces: list[int] = []
        self.streams: list[int] = []
        self._numbers = itertools.count(1)
        self._held: dict[int, list[Any]] = {}

    def _new(self, *parts: Any) -> int:
        number = next(self._numbers)
        self._held[number] = list(parts)
        self.alive.add(number)
        return number

    def csr(self, *parts: Any) -> int:
        return self._new(*parts)

    def set_values(self, csr: int, values: int) -> None:
        self._held[csr][5] = values

    def dense(self, rows: int, columns: int, data: int) -> int:
        return self._new(rows, columns, data)

    def set_data(self, dense: int, data: int) -> None:
        self._held[dense][2] = data

    def workspace_bytes(self, csr: int, x: int, out: int) -> int:
        return self.workspace

    def multiply(self, csr: int, x: int, out: int, workspace: int, stream: int):
        assert self.lock.locked() and {csr, x, out} <= self.alive and workspace
        rows, columns, edges, indptr, indices, values = self._held[csr]
        (held, width, table), (count, _, result) = self._held[x], self._held[out]
        assert held == columns and count == rows
        ends = read(indptr, rows + 1, np.int32)
        matrix = np.zeros((rows, columns), np.float32)
        places = np.repeat(np.arange(rows), np.diff(ends)), read(indices, edges, np.int32)
        np.add.at(matrix, places, read(values, edges, np.float32))
        product = matrix @ read(table, columns * width, np.float32).reshape(columns, width)
        read(result, rows * width, np.float32)[:] = product.reshape(-1)
        self.streams.append(stream)
        self.workspaces.append(workspace)

    def free(self, *descriptors: int) -> None:
        self.alive -= set(descriptors)
