"""Choice of lane layout and schedule from dtype, heads, head dimension and graph size.

Constants were tuned on an H200 at two heads of 64: sixteen lanes an edge with eight values a lane
were fastest of 8, 16 and 32 lanes; chunks are short on small graphs (more tasks than warps) and
long on large ones (fewer partials). What they give is in ``docs/performance.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

MAX_HEAD_DIM = 1024
VALUES = 8  # values a lane, the sweet spot of registers against lanes
GROUP_TARGET = 16  # lanes an edge that heads are laid side by side to reach
WARP = 32
MIN_CHUNK, MAX_CHUNK = 64, 1024  # neighbours a task
FULL_TASKS = 4000  # tasks of full length that keep a large GPU busy

DTYPE_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
DTYPE_TYPES = {"f32": "float", "bf16": "bf16", "f16": "f16"}
PER_ACCESS = {"f32": 4, "bf16": 8, "f16": 8}  # values in 16 bytes


@dataclass(frozen=True)
class Shape:
    """Lane layout of a row (``Shape`` in kernels/common.cuh).

    Attributes
    ----------
    lanes : int
        Lanes a head, a power of two.
    heads : int
        Heads side by side, a power of two that divides the head count.
    values : int
        Values a lane.
    vector : bool
        16-byte accesses; else one value at a time.
    full : bool
        The head dimension is ``lanes * values``; else the tail is masked.
    """

    lanes: int
    heads: int
    values: int
    vector: bool
    full: bool

    @property
    def tasks(self) -> int:
        """Tasks side by side in a warp."""
        return WARP // (self.lanes * self.heads)

    @property
    def name(self) -> str:
        kind = ("v" if self.vector else "s") + ("f" if self.full else "m")
        return f"l{self.lanes}h{self.heads}k{self.values}{kind}"


@dataclass(frozen=True)
class Pass:
    """Tuning of one pass: edges a lane group has in flight, blocks to fit a multiprocessor."""

    unroll: int
    min_blocks: int = 1


@dataclass(frozen=True)
class Schedule:
    """Tuning of the passes of a unit."""

    forward: Pass
    backward_dst: Pass
    backward_src: Pass


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


@lru_cache(maxsize=1024)
def shape_for(dtype: str, heads: int, dim: int) -> Shape:
    """Lane layout for rows of ``heads`` heads of ``dim`` values (1 to ``MAX_HEAD_DIM``)."""
    if dim % PER_ACCESS[dtype]:
        lanes = min(WARP, max(4, _power_of_two(dim)))
        return Shape(lanes, 1, _power_of_two(-(-dim // lanes)), vector=False, full=False)
    lanes = min(WARP, _power_of_two(-(-dim // VALUES)))
    values = max(VALUES, _power_of_two(-(-dim // lanes)))
    if dim != lanes * values:
        return Shape(lanes, 1, values, vector=True, full=False)
    side = 1
    while lanes * side * 2 <= GROUP_TARGET and heads % (side * 2) == 0:
        side *= 2
    return Shape(lanes, side, values, vector=True, full=True)


def all_shapes(*dtypes: str) -> list[Shape]:
    """Every layout that :func:`shape_for` can return for these dtypes (all), each once."""
    found = {
        shape_for(dtype, heads, dim): None
        for dtype in dtypes or DTYPE_NAMES.values()
        for heads in (1, 2, 4, 8, 16)
        for dim in range(1, MAX_HEAD_DIM + 1)
    }
    return list(found)


def schedule_for(shape: Shape) -> Schedule:
    """Edges in flight and register bounds: as many as fit without spilling."""
    if shape.values <= 8:
        narrow = shape.lanes in (2, 4) and shape.heads == 1  # would spill at five blocks
        return Schedule(Pass(4, 4 if narrow else 5), Pass(4, 3), Pass(2))
    if shape.values <= 16:
        return Schedule(Pass(2), Pass(2), Pass(1))
    return Schedule(Pass(1), Pass(1), Pass(1))


def chunk_for(num_edges: int) -> int:
    """Neighbours a task: short where there would be too few tasks to fill a GPU, else long."""
    chunk = MIN_CHUNK
    while chunk < MAX_CHUNK and num_edges >= 2 * chunk * FULL_TASKS:
        chunk *= 2
    return chunk
