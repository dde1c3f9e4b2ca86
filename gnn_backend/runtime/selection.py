"""Choice of lane layout and schedule from dtype, heads, head dimension and graph size.

Constants were tuned on an H200 at two heads of 64. In float32 sixteen lanes an edge with eight
values a lane were fastest of 8, 16 and 32 lanes; in 16 bits, where arithmetic decides, eight lanes
with sixteen values, since what is done once a lane and edge is then done half as often. Chunks are
short on small graphs (more tasks than warps) and long on large ones (fewer partials). What they
give is in ``docs/performance.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from gnn_backend.runtime.options import PLAIN, Options

MAX_HEAD_DIM = 1024
VALUES = 8  # values a lane, the sweet spot of registers against lanes
PACKED_VALUES = 16  # the same of 16-bit rows whose dot products run on tensor cores
GROUP_VALUES = 128  # values of a row that heads are laid side by side to reach
QUAD = 4  # lanes that a tensor core's dot product sums over
WARP = 32
CHUNKS = (32, 64, 128, 192, 384, 1024)  # neighbours a task
FULL_WARPS = 2000  # warps with tasks of full length that keep a large GPU busy

#: Mappings of rows to lanes (:func:`shape_for`).
MAPPINGS = NEIGHBOURS, FEATURES = ("neighbour-parallel", "feature-parallel")

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
    def mapping(self) -> str:
        """The mapping that this layout is."""
        return NEIGHBOURS if self.tasks > 1 else FEATURES

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

    @property
    def backward(self) -> dict[str, Pass]:
        """The backward passes by direction."""
        return {"dst": self.backward_dst, "src": self.backward_src}


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


@lru_cache(maxsize=1024)
def shape_for(dtype: str, heads: int, dim: int, mapping: str = NEIGHBOURS) -> Shape:
    """Lane layout for rows of ``heads`` heads of ``dim`` values (1 to ``MAX_HEAD_DIM``).

    Parameters
    ----------
    mapping : {"neighbour-parallel", "feature-parallel"}
        Whether the lanes of a warp share the neighbours of several tasks, with as many values a
        lane as are fastest on an H200; or the features of a single neighbour's row, as far as it
        goes. Wide rows are feature-parallel in any case.
    """
    found = _neighbour_parallel(dtype, heads, dim)
    if mapping == NEIGHBOURS or not (found.full and found.vector):
        return found
    each = PER_ACCESS[dtype]
    lanes = min(WARP, dim // each)
    if lanes < found.lanes or lanes * each != dim:
        return found
    side = 1
    while lanes * side < WARP and heads % (side * 2) == 0:
        side *= 2
    return Shape(lanes, side, each, vector=True, full=True)


def _neighbour_parallel(dtype: str, heads: int, dim: int) -> Shape:
    if dim % PER_ACCESS[dtype]:
        lanes = min(WARP, max(4, _power_of_two(dim)))
        return Shape(lanes, 1, _power_of_two(-(-dim // lanes)), vector=False, full=False)
    each = PACKED_VALUES if _packs_well(dtype, heads, dim) else VALUES
    lanes = min(WARP, _power_of_two(-(-dim // each)))
    values = max(each, _power_of_two(-(-dim // lanes)))
    if dim != lanes * values:
        return Shape(lanes, 1, values, vector=True, full=False)
    side = 1
    while lanes * values * side * 2 <= GROUP_VALUES and heads % (side * 2) == 0:
        side *= 2
    return Shape(lanes, side, values, vector=True, full=True)


def _packs_well(dtype: str, heads: int, dim: int) -> bool:
    """Whole quads of lanes with ``PACKED_VALUES`` each, and at least two of them an edge."""
    quad = QUAD * PACKED_VALUES
    lanes = dim // PACKED_VALUES
    whole = dim % quad == 0 and lanes == _power_of_two(lanes)
    return PER_ACCESS[dtype] == 8 and whole and (dim > quad or heads % 2 == 0)


def all_shapes(*dtypes: str) -> list[Shape]:
    """Every layout that :func:`shape_for` can return for these dtypes (all), each once."""
    found = {
        shape_for(dtype, heads, dim): None
        for dtype in dtypes or DTYPE_NAMES.values()
        for heads in (1, 2, 4, 8, 16)
        for dim in range(1, MAX_HEAD_DIM + 1)
    }  # neighbour-parallel; the others are compiled where they are measured
    return list(found)


def on_tensor_cores(dtype: str, shape: Shape) -> bool:
    """Whether scores are taken there, which needs fewer registers (kernels/dots.cuh)."""
    return PER_ACCESS[dtype] == 8 and shape.vector and shape.lanes >= QUAD


@lru_cache(maxsize=1024)
def shapes_with_features(dtype: str, heads: int, dim: int, features: int) -> tuple[Shape, Shape]:
    """Lane layouts of the operands' rows and of edge features, with equal lanes a group.

    The lanes of a head are as many as the wider of the two asks for. Where features need fewer,
    those of several edges stand side by side in them, which the layout counts as heads.
    """
    plain = shape_for(dtype, heads, dim)
    lanes = min(WARP, max(plain.lanes, _power_of_two(-(-features // VALUES))))
    side = plain.heads
    while lanes * side > WARP // 2 and side > 1:
        side //= 2

    def layout(width: int, lanes: int, side: int) -> Shape:
        each = PER_ACCESS[dtype]
        vector = width % each == 0
        values = max(each if vector else 1, _power_of_two(-(-width // lanes)))
        return Shape(lanes, side, values, vector, vector and width == lanes * values)

    each = PER_ACCESS[dtype] if features % PER_ACCESS[dtype] == 0 else 1
    few = min(lanes, _power_of_two(-(-features // each)))
    fragment = layout(features, few, side * (lanes // few))
    same = (lanes, side) == (plain.lanes, plain.heads)
    return plain if same else layout(dim, lanes, side), fragment


@lru_cache(maxsize=1024)
def schedule_for(
    dtype: str,
    shape: Shape,
    functor: str = "GATv2",
    options: Options = PLAIN,
    fragment: Shape | None = None,
) -> Schedule:
    """Edges in flight and register bounds: as many as fit without spilling.

    What edges bring besides takes registers: numbers and terms one block of a backward pass in
    float32 (in 16 bits a few spilled registers cost less than a block), rows half of the edges.
    Features leave two edges in flight, of which there may then be more groups.
    """
    plain = _plain_schedule(dtype, shape, functor)
    if not options.numbered:
        return plain
    packed = on_tensor_cores(dtype, shape)
    if fragment is not None:
        if max(shape.values, fragment.values) > (PACKED_VALUES if packed else VALUES):
            return _schedule((1, 1), (1, 1), (1, 1))
        crowded = fragment.values > PER_ACCESS[dtype] or options.dropout or options.logit
        return _schedule(*_WITH_FEATURES[packed, crowded])

    most = (1 if shape.values > VALUES else 2) if options.rows else plain.forward.unroll

    def burdened(tuning: Pass, keeps: bool) -> Pass:
        fewer = max(1, tuning.min_blocks - (options.rows or not keeps))
        return Pass(min(tuning.unroll, most), fewer)

    return Schedule(
        *(burdened(getattr(plain, which), packed or which == "forward") for which in _PASSES)
    )


_PASSES = ("forward", "backward_dst", "backward_src")
#: Of dot products with edge features, by whether they run on tensor cores, and whether a lane has
#: more than one access of features, or an edge something else as well.
_WITH_FEATURES: dict[tuple[bool, bool], tuple[tuple[int, int], ...]] = {
    (False, False): ((2, 5), (2, 4), (2, 5)),
    (False, True): ((2, 4), (2, 3), (2, 4)),
    (True, False): ((2, 4), (2, 3), (4, 4)),
    (True, True): ((2, 4), (2, 3), (4, 4)),
}
#: Of GAT, SuperGAT and dot products: by values a lane, and whether tensor cores do the products.
_SCHEDULES: dict[str, dict[tuple[int, bool], tuple[tuple[int, int], ...]]] = {
    "GAT": {
        (VALUES, False): ((4, 5), (4, 4), (4, 4)),
        (VALUES, True): ((4, 5), (4, 5), (4, 4)),
        (PACKED_VALUES, False): ((2, 1), (2, 1), (2, 1)),
        (PACKED_VALUES, True): ((4, 5), (4, 4), (4, 4)),
    },
    "SuperGAT": {
        (VALUES, False): ((4, 4), (4, 3), (4, 3)),
        (VALUES, True): ((4, 4), (4, 3), (4, 3)),
        (PACKED_VALUES, False): ((2, 1), (2, 1), (1, 1)),
        (PACKED_VALUES, True): ((4, 4), (2, 4), (2, 4)),
    },
    "Dot": {
        (VALUES, False): ((4, 4), (4, 4), (4, 3)),
        (VALUES, True): ((4, 5), (4, 3), (4, 3)),
        (PACKED_VALUES, False): ((2, 1), (2, 1), (1, 1)),
        (PACKED_VALUES, True): ((4, 4), (2, 4), (2, 4)),
    },
}
_SCHEDULES["ScaledDot"] = _SCHEDULES["SuperGAT"]  # which it is but for the logit


def _plain_schedule(dtype: str, shape: Shape, functor: str) -> Schedule:
    if functor == "GATv2":
        return _gatv2_schedule(dtype, shape)
    values = VALUES if shape.values <= VALUES else shape.values
    found = _SCHEDULES[functor].get((values, on_tensor_cores(dtype, shape)))
    return _schedule(*found or ((1, 1), (1, 1), (1, 1)))


def _gatv2_schedule(dtype: str, shape: Shape) -> Schedule:
    packed = on_tensor_cores(dtype, shape)
    if shape.values <= VALUES:
        if packed:
            return (
                _schedule((4, 5), (4, 4), (4, 4))
                if shape.full
                else _schedule((4, 4), (4, 3), (4, 3))
            )
        roomy = shape.vector and shape.lanes >= QUAD  # fewer values that differ between lanes
        return _schedule((4, 5 if roomy else 4), (4, 3), (2, 4))
    if shape.values <= PACKED_VALUES:
        if packed:
            blocks = 3 if shape.lanes == WARP else 4
            by_source = 4 if shape.heads > 1 and dtype == "bf16" else 3
            return _schedule((4, blocks), (2, blocks), (2, by_source))
        return _schedule((2, 1), (2, 1), (1, 1))
    return _schedule((1, 1), (1, 1), (1, 1))


def _schedule(*passes: tuple[int, int]) -> Schedule:
    """Forward, by destination and by source: edges in flight and blocks."""
    return Schedule(*(Pass(unroll, blocks) for unroll, blocks in passes))


def chunk_for(num_edges: int, tasks: int) -> int:
    """Neighbours a task, when ``tasks`` of them stand side by side in a warp.

    Short where there would be too few tasks to fill a GPU, else long.
    """
    fitting = [chunk for chunk in CHUNKS if num_edges >= chunk * tasks * FULL_WARPS]
    return max(fitting, default=CHUNKS[0])
