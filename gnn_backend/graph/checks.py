"""Checks of what a Graph is built from, and their messages."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph.build import INT32_MAX, first_out_of_range
from gnn_backend.graph.splits import count_splits

_INTEGERS = (torch.int32, torch.int64)
_COMMON_CHUNKS = (32, 64, 128, 192, 384, 1024)  # their sizes are counted with the first CSR


def check_integer(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise invalid(name, "not a tensor", type(tensor).__name__, "a torch.Tensor of integers")
    if tensor.dtype not in _INTEGERS:
        raise invalid(name, "wrong dtype", tensor.dtype, "torch.int32 or torch.int64")


def node_count(name: str, count: int | None, ids: Tensor) -> int:
    if count is None:
        count = max(0, int(ids.max()) + 1) if ids.numel() else 0
    try:
        count = operator.index(count)
    except TypeError:
        raise invalid(name, "not a count", repr(count), "an integer, or None") from None
    if not 0 <= count <= INT32_MAX:
        raise invalid(name, "out of range", count, f"0 to {INT32_MAX}")
    return count


def out_of_range(argument: str, end: str, node: int, edge: int, count: int) -> Exception:
    return invalid(
        argument,
        f"{end} of edge {edge} out of range",
        node,
        f"0 to {count - 1}" if count else "no edge, as there are no such nodes",
        "Pass the right node count, or drop the edge",
    )


def check_ids(argument: str, ids: Tensor, count: int) -> None:
    if ids.numel() == 0:
        return
    low, high = torch.stack(torch.aminmax(ids)).tolist()
    if low < 0 or high >= count:
        bad = first_out_of_range(ids, count)
        raise out_of_range(argument, "source", int(ids[bad]), bad, count)


def cuda_counts(
    indptr: Tensor, src: Tensor, dst: Tensor, num_src: int, num_dst: int
) -> dict[Any, Any]:
    """Check ids and size the splits of both directions with one device-to-host copy."""
    if src.numel() == 0:
        return {}
    out_degree = torch.zeros(num_src, dtype=torch.int32, device=src.device)
    if num_src:
        safe = src.clamp(0, num_src - 1).long()
        one = torch.ones((), dtype=torch.int32, device=src.device)
        out_degree.scatter_add_(0, safe, one.expand(safe.shape))
    degrees = [indptr.diff(), out_degree]
    if num_src == num_dst and indptr.dtype == torch.int32:
        degrees = [torch.stack(degrees)]  # half as many kernels
    report = torch.cat(
        [
            torch.stack([*torch.aminmax(src), *torch.aminmax(dst)]).long(),
            *(count_splits(each, _COMMON_CHUNKS).flatten() for each in degrees),
        ]
    ).tolist()
    for end, ids, low, high, count in (
        ("source", src, report[0], report[1], num_src),
        ("destination", dst, report[2], report[3], num_dst),
    ):
        if low < 0 or high >= count:
            bad = first_out_of_range(ids, count)
            raise out_of_range("edge_index", end, int(ids[bad]), bad, count)
    sizes = [tuple(report[i : i + 3]) for i in range(4, len(report), 3)]
    chunks = len(_COMMON_CHUNKS)
    return {
        **{("dst", c): sizes[i] for i, c in enumerate(_COMMON_CHUNKS)},
        **{("src", c): sizes[chunks + i] for i, c in enumerate(_COMMON_CHUNKS)},
    }
