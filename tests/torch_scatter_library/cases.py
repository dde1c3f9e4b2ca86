"""Calls to compare: every function, with the layouts, dtypes and arguments that it takes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

E, N = 24, 7
REDUCTIONS = ("sum", "add", "mean", "mul", "min", "max")
SEGMENTS = ("sum", "add", "mean", "min", "max")
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.int64, torch.int32)

#: Shape of the source, dimension, shape of the index.
LAYOUTS = {
    "list": ((E,), -1, (E,)),
    "rows": ((E, 3), 0, (E,)),
    "middle": ((2, E, 4), 1, (E,)),
    "last": ((3, E), -1, (E,)),
    "blocks": ((2, E, 3), -2, (2, E)),
    "values": ((E, 3), 0, (E, 3)),
}
SORTED_LAYOUTS = {
    "list": ((E,), (E,)),
    "rows": ((E, 5), (E,)),
    "blocks": ((2, E, 3), (2, E)),
    "alike": ((2, E, 3), (1, E)),
}


@dataclasses.dataclass(frozen=True)
class Call:
    """One call.

    Attributes
    ----------
    function : str
    name : str
        The function and what is special about the call.
    arguments : callable
        Makes new arguments: positional ones, the source first, and those given by name.
    """

    function: str
    name: str
    arguments: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]


def source(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Numbers of which many are equal, and none 0 where they are not integers."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(-6, 7, shape, generator=generator)
    return whole.to(dtype) if not dtype.is_floating_point else (whole / 4 + 0.125).to(dtype)


def index_of(shape: tuple[int, ...], along: int, ascending: bool) -> Tensor:
    """An index in which 2 does not occur, and from 0 to N - 2."""
    index = torch.randint(N - 1, shape, generator=torch.Generator().manual_seed(1))
    index = torch.where(index == 2, 0, index)
    index.select(along, 0).fill_(N - 2)
    return index.sort(along).values if ascending else index


def calls() -> Iterator[Call]:
    """All calls."""
    yield from _scatter()
    yield from _composites()
    yield from _segments()
    yield from _gathers()


def _scatter() -> Iterator[Call]:
    options = itertools.product(REDUCTIONS, LAYOUTS, DTYPES, (False, True), ("", "size", "out"))
    for op, layout, dtype, ascending, extra in options:
        shape, dim, of_index = LAYOUTS[layout]
        along = dim % len(shape) if len(of_index) > 1 else 0
        index = index_of(of_index, along, ascending)
        out_shape = _resized(shape, dim, N)

        def arguments(
            shape=shape, dim=dim, index=index, dtype=dtype, extra=extra, out_shape=out_shape
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            out = source(out_shape, dtype, 5) if extra == "out" else None
            size = N if extra == "size" else None
            return (source(shape, dtype), index, dim), {"out": out, "dim_size": size}

        kind = "sorted" if ascending else "shuffled"
        name = f"scatter_{op}, {layout}, {_short(dtype)}, {kind}{extra and ', ' + extra}"
        yield Call(f"scatter_{op}", name, arguments)
        if layout == "rows" and dtype == torch.float32:

            def chosen(arguments=arguments, op=op) -> tuple[tuple[Any, ...], dict[str, Any]]:
                args, named = arguments()
                return args, {**named, "reduce": op}

            yield Call("scatter", name.replace("scatter_", "scatter "), chosen)


def _composites() -> Iterator[Call]:
    extras = {
        "softmax": ("", "size"),
        "log_softmax": ("", "size"),
        "logsumexp": ("", "size", "out"),
        "std": ("", "size", "out", "biased"),
    }
    for op, layout, dtype, ascending in itertools.product(extras, LAYOUTS, FLOATS, (False, True)):
        shape, dim, of_index = LAYOUTS[layout]
        along = dim % len(shape) if len(of_index) > 1 else 0
        index = index_of(of_index, along, ascending)
        for extra in extras[op]:

            def arguments(
                shape=shape, dim=dim, index=index, dtype=dtype, extra=extra
            ) -> tuple[tuple[Any, ...], dict[str, Any]]:
                named = {
                    "": {},
                    "size": {"dim_size": N},
                    "out": {"out": source(_resized(shape, dim, N), dtype, 5).abs()},
                    "biased": {"unbiased": False},
                }[extra]
                return (source(shape, dtype), index, dim), named

            kind = "sorted" if ascending else "shuffled"
            name = f"scatter_{op}, {layout}, {_short(dtype)}, {kind}{extra and ', ' + extra}"
            yield Call(f"scatter_{op}", name, arguments)


def _segments() -> Iterator[Call]:
    for op, layout, dtype, extra in itertools.product(
        SEGMENTS, SORTED_LAYOUTS, DTYPES, ("", "size", "out")
    ):
        shape, of_index = SORTED_LAYOUTS[layout]
        dim = len(of_index) - 1
        index = index_of(of_index, dim, True)
        index.select(dim, 0).fill_(
            0
        )  # of an index that begins later, the library reads a wrong out
        indptr = torch.searchsorted(
            index, torch.arange(N + 1).expand(*of_index[:-1], -1).contiguous()
        )

        def arguments(
            shape=shape, dim=dim, index=index, dtype=dtype, extra=extra
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            named = {} if extra != "size" else {"dim_size": N}
            if extra == "out":
                named = {"out": source(_resized(shape, dim, N), dtype, 5)}
            return (source(shape, dtype), index), named

        name = f"{layout}, {_short(dtype)}{extra and ', ' + extra}"
        yield Call(f"segment_{op}_coo", f"segment_{op}_coo, {name}", arguments)
        if layout == "rows" and dtype == torch.float32:
            yield Call("segment_coo", f"segment_coo {op}, {name}", _with_reduce(arguments, op))
        if extra == "size":
            continue

        def by_offsets(
            arguments=arguments, indptr=indptr
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            (src, _), named = arguments()
            return (src, indptr), named

        yield Call(f"segment_{op}_csr", f"segment_{op}_csr, {name}", by_offsets)
        if layout == "rows" and dtype == torch.float32:
            yield Call("segment_csr", f"segment_csr {op}, {name}", _with_reduce(by_offsets, op))


def _gathers() -> Iterator[Call]:
    for layout, dtype, extra in itertools.product(SORTED_LAYOUTS, DTYPES, ("", "out")):
        shape, of_index = SORTED_LAYOUTS[layout]
        dim = len(of_index) - 1
        index = index_of(of_index, dim, True).expand(shape[: dim + 1])
        bounds = torch.arange(N + 1).expand(*index.shape[:-1], -1).contiguous()
        indptr = torch.searchsorted(index.contiguous(), bounds)
        nodes = _resized(shape, dim, N)
        for function, where in (("gather_coo", index), ("gather_csr", indptr)):

            def arguments(
                shape=shape, nodes=nodes, where=where, dtype=dtype, extra=extra
            ) -> tuple[tuple[Any, ...], dict[str, Any]]:
                named = {"out": source(shape, dtype, 5)} if extra else {}
                return (source(nodes, dtype), where), named

            name = f"{function}, {layout}, {_short(dtype)}{extra and ', ' + extra}"
            yield Call(function, name, arguments)


def _with_reduce(arguments: Callable[[], Any], op: str) -> Callable[[], Any]:
    def chosen() -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, named = arguments()
        return args, {**named, "reduce": op}

    return chosen


def _resized(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    dim %= len(shape)
    return (*shape[:dim], size, *shape[dim + 1 :])


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
