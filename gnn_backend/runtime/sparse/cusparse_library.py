"""The part of cuSPARSE that sums need, called through ctypes in the library that torch has loaded.

CuPy binds these functions too, but its binding refuses to run while a stream is captured, and puts
its own current stream in the place of torch's at each call.

Sums are of ``CSR_ALG2``, whose bits differ from run to run. ``CSR_ALG3``, documented as the one
whose bits do not, takes up to eight times as long in version 12.6.3 where there are hubs; prepared,
it gave wrong sums or read past its memory where a row had thousands of entries, and unprepared,
other bits at each run on a graph of two million edges, and cannot be captured there.
"""

from __future__ import annotations

import ctypes
import threading
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from gnn_backend.errors import GNNBackendError

_FLOAT = 0  # of cudaDataType
_INDEX_32, _BASE_ZERO, _ROW_MAJOR, _PLAIN = 2, 0, 2, 0
_ALGORITHM = 6  # CUSPARSE_SPMM_CSR_ALG2, the fastest for rows that follow each other
_NAMES = ("libcusparse.so.12", "libcusparse.so.13", "libcusparse.so.11", "libcusparse.so")
_PRODUCT = (c_void_p, c_int, c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "Create": (POINTER(c_void_p),),
    "SetStream": (c_void_p, c_void_p),
    "CreateCsr": (POINTER(c_void_p), c_int64, c_int64, c_int64, c_void_p, c_void_p, c_void_p,
                  c_int, c_int, c_int, c_int),
    "SpMatSetValues": (c_void_p, c_void_p),
    "DestroySpMat": (c_void_p,),
    "CreateDnMat": (POINTER(c_void_p), c_int64, c_int64, c_int64, c_void_p, c_int, c_int),
    "DnMatSetValues": (c_void_p, c_void_p),
    "DestroyDnMat": (c_void_p,),
    "SpMM_bufferSize": (*_PRODUCT, POINTER(c_size_t)),
    "SpMM": (*_PRODUCT, c_void_p),
}  # fmt: skip
_ONE, _ZERO = c_float(1.0), c_float(0.0)


class CuSparseError(GNNBackendError, RuntimeError):
    """A call of cuSPARSE failed."""


class Library:
    """cuSPARSE on one device: a handle, and its functions with their statuses checked.

    Calls that use the handle hold ``lock``: the handle's stream is set for each of them.
    Descriptors are host memory alone; ``int`` stands for their addresses and for those of tensors.

    Parameters
    ----------
    shared : object
        The loaded library, with ``cusparse*`` as attributes.
    """

    def __init__(self, shared: Any) -> None:
        self.lock = threading.Lock()
        self._functions = {}
        for name, arguments in _SIGNATURES.items():
            function = getattr(shared, f"cusparse{name}")
            function.argtypes, function.restype = arguments, c_int
            self._functions[name] = function
        self._text = shared.cusparseGetErrorString
        self._text.argtypes, self._text.restype = (c_int,), c_char_p
        handle = c_void_p()
        self._call("Create", byref(handle))
        self._handle = handle

    def csr(
        self, rows: int, columns: int, entries: int, indptr: int, indices: int, values: int
    ) -> int:
        """A sparse matrix of float32, with 32-bit indices."""
        made = c_void_p()
        self._call("CreateCsr", byref(made), rows, columns, entries, indptr, indices, values,
                   _INDEX_32, _INDEX_32, _BASE_ZERO, _FLOAT)  # fmt: skip
        return made.value or 0

    def set_values(self, csr: int, values: int) -> None:
        """Give a sparse matrix other values."""
        self._call("SpMatSetValues", csr, values)

    def dense(self, rows: int, columns: int, data: int) -> int:
        """A matrix of float32 whose rows follow each other in memory."""
        made = c_void_p()
        self._call("CreateDnMat", byref(made), rows, columns, columns, data, _FLOAT, _ROW_MAJOR)
        return made.value or 0

    def set_data(self, dense: int, data: int) -> None:
        """Give a matrix another place in memory."""
        self._call("DnMatSetValues", dense, data)

    def workspace_bytes(self, csr: int, x: int, out: int) -> int:
        """Bytes that a product works in."""
        size = c_size_t()
        self._call("SpMM_bufferSize", *self._product(csr, x, out), byref(size))
        return size.value

    def multiply(self, csr: int, x: int, out: int, workspace: int, stream: int) -> None:
        """``out = csr @ x`` on ``stream``; nothing of ``out`` is read."""
        self._call("SetStream", self._handle, stream)
        self._call("SpMM", *self._product(csr, x, out), workspace)

    def free(self, csr: int, *dense: int) -> None:
        """Free descriptors, which may be in use by products that were launched."""
        self._call("DestroySpMat", csr)
        for each in dense:
            self._call("DestroyDnMat", each)

    def _product(self, csr: int, x: int, out: int) -> tuple[Any, ...]:
        # Both scalars lie in host memory.
        return (self._handle, _PLAIN, _PLAIN, byref(_ONE), csr, x, byref(_ZERO), out,
                _FLOAT, _ALGORITHM)  # fmt: skip

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._functions[name](*arguments)
        if status:
            text = (self._text(status) or b"").decode()
            raise CuSparseError(
                f"cusparse{name}: failed; got status {status} ({text}), expected success. Set "
                "GNN_BACKEND_AGGREGATION_PATH=rows to do without cuSPARSE."
            )


def _shared() -> Any:
    """The library that torch has loaded: found through torch's own, by its name otherwise."""
    folder = Path(torch.__file__).parent / "lib"
    for name in (str(folder / "libtorch_cuda.so"), *_NAMES):
        try:
            found = ctypes.CDLL(name)
            _ = found.cusparseSpMM
        except (OSError, AttributeError):
            continue
        return found
    return None


@lru_cache(maxsize=64)
def library(device: int) -> Library | None:
    """cuSPARSE on a device, None where there is none."""
    shared = _shared()
    if shared is None:
        return None
    with torch.cuda.device(device):
        torch.cuda.current_stream(device)  # torch's context is current before a handle is made
        return Library(shared)
