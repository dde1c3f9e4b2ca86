"""The crossing from Python into DGL's C++: natively, by a detour through the CPU, or as ever.

Imports nothing of DGL, so that it can be put in place before DGL is. Until the first resident
array or graph exists, a call costs one check more than stock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gnn_backend.profile import count_detour

TAG = "_gnn_backend_device"
"""Attribute of a C++ container that came of a detour: its items belong on this device."""

counts: Counter[str] = Counter()
"""Calls answered on the device, by packed function, since the process began."""

_PLAIN = frozenset({int, str, bool, float, type(None), bytearray, bytes})
_kinds: dict[str, Any] = {}  # classes and functions of DGL and of this package, once needed


def activate() -> None:
    """Start to look at arguments; called when the first resident object is made."""
    if _kinds:
        return
    from dgl._ffi.function import Function
    from dgl._ffi.object import ObjectBase
    from dgl.graph_index import GraphIndex
    from dgl.heterograph_index import HeteroGraphIndex, HeteroPickleStates
    from dgl.ndarray import NDArray, SparseMatrix

    from gnn_backend.adapters.dgl.residence import (  # noqa: F401 (they fill the table)
        arrays,
        check,
        create,
        geometry,
        index,
        native,
        partition,
        pinning,
        queries,
        sampling,
        subgraphs,
        transforms,
    )

    check.check_names()
    _kinds.update(
        array=arrays.DeviceArray,
        index=index.ResidentIndex,
        lift_index=index.from_host,
        twin=pinning.twin,
        to_host=arrays.to_host,
        from_host=arrays.from_host,
        native=native.TABLE,
        ndarray=NDArray,
        stock_index=HeteroGraphIndex,
        object=ObjectBase,
        function=Function,
        untagged=(GraphIndex, HeteroPickleStates, SparseMatrix),
    )


def calling(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Make the replacement of ``Function.__call__``; ``stock`` enters C++."""

    def __call__(self: Any, *args: Any) -> Any:
        try:
            if not _kinds:
                return stock(self, *args)
            device = _device(args)
            if device is None:
                return stock(self, *args)
            return _cross(stock, self, args, device)
        except Exception as error:
            if _NO_CUDA not in str(error):
                raise
            raise _explained(self, error) from None

    return __call__


_NO_CUDA = "Device API cuda is not enabled"  # from DGL's library, which was built for the CPU


def _explained(function: Any, error: Exception) -> Exception:
    """The same kind of error, which says what can be done."""
    name = function.__dict__.get("__name__", "a function of DGL").removeprefix("_CAPI_")
    if not torch.cuda.is_available():
        return type(error)(f"{name}: asks for CUDA, but torch finds no CUDA device. Stay on the "
                           "CPU, or see python -m gnn_backend doctor.")  # fmt: skip
    return type(error)(f"{name}: runs on CUDA by DGL's own code alone, which the build for the CPU "
                       "has not got; got a place on CUDA, expected the CPU. Move what it works on "
                       "to the CPU first.")  # fmt: skip


def _device(args: Iterable[Any]) -> torch.device | None:
    """The device that the arguments belong to, or None if all are C++'s own."""
    array, index = _kinds["array"], _kinds["index"]
    for arg in args:
        kind = type(arg)
        if kind in _PLAIN:
            continue
        if kind is array or kind is index:
            return arg.device
        if kind is list or kind is tuple:
            found = _device(arg)
        elif kind is dict:
            found = _device(arg.values())
        elif isinstance(arg, _kinds["object"]):
            found = arg.__dict__.get(TAG)
        else:
            continue
        if found is not None:
            return found
    return None


def _cross(stock: Callable[..., Any], function: Any, args: Any, device: torch.device) -> Any:
    name = function.__dict__.get("__name__", "")
    answer = _kinds["native"].get(name)
    if answer is not None:
        if type(args[0]) is _kinds["stock_index"]:  # a pinned graph that is read from the device
            args = (_kinds["twin"](args[0], device), *args[1:])
        result = answer(*args)
        if result is not NotImplemented:
            counts[name] += 1
            return result
    return detour(stock, function, name, args, device)


def detour(
    stock: Callable[..., Any], function: Any, name: str, args: Any, device: torch.device
) -> Any:
    """Answer through the CPU: copy arguments there, call, and bring written arrays back."""
    lowering = _Lowering()
    lowered = [lowering(arg) for arg in args]
    result = stock(function, *lowered)
    lowering.write_back(name)
    if lowering.moved and name.startswith("_CAPI_"):  # not for helpers such as _ListGetItem
        count_detour(name.removeprefix("_CAPI_"))
    return lift(result, device)


class _Lowering:
    """Copies arguments to the CPU and remembers which arrays C++ may have written to."""

    def __init__(self) -> None:
        self.moved = False
        self.arrays: list[tuple[Any, Any]] = []

    def __call__(self, arg: Any) -> Any:
        kind = type(arg)
        if kind in _PLAIN:
            return arg
        if kind is _kinds["array"]:
            self.moved = True
            host = _kinds["to_host"](arg)
            self.arrays.append((arg, host))
            return host
        if kind is _kinds["index"]:
            self.moved = True
            return arg.host()
        if kind is list or kind is tuple:
            return [self(item) for item in arg]
        if kind is dict:
            return {key: self(item) for key, item in arg.items()}
        return arg

    def write_back(self, name: str) -> None:
        for array, host in self.arrays:
            if array.written or name in WRITERS:
                array.write_back(host)


WRITERS = frozenset(
    {
        "_CAPI_FarthestPointSampler",
        "_CAPI_NeighborMatching",
        "_CAPI_DGLSampleNeighborsFused",
        "_CAPI_DGLIndexScatterGPUToCPU",
    }
)
"""Packed functions that write into arrays that were not handed over for writing."""


def lift(result: Any, device: torch.device) -> Any:
    """Bring a result of C++ to the device, or tag it so that its items follow."""
    kind = type(result)
    if kind in _PLAIN:
        return result
    if isinstance(result, _kinds["stock_index"]):
        return _kinds["lift_index"](result, device)
    if isinstance(result, _kinds["ndarray"]):
        return _kinds["from_host"](result, device)
    if isinstance(result, _kinds["function"]):
        return lambda *args: lift(result(*args), device)
    if isinstance(result, _kinds["object"]) and not isinstance(result, _kinds["untagged"]):
        setattr(result, TAG, device)
    return result
