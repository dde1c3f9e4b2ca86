"""Attention dropout's random numbers: Philox 4x32-7, counted by edge, head and call.

The number of an edge and head depends on nothing else, so that a backward pass finds the mask of
its forward again without storing it, and every target drops the same edges. Source: Salmon,
Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011), who found seven rounds
to be the fewest that pass BigCrush.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnn_backend.errors import invalid

_MASK = 0xFFFFFFFF
_ROUNDS = 7
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)  # what the key grows by in a round
_WORDS = 4  # of 32 bits that one evaluation gives
_OFFSETS_A_CALL = 4  # torch keeps the offset of a CUDA generator a multiple of this
_BITS = 24  # of a word that make a float32 in [0, 1)

Words = tuple[Tensor, Tensor, Tensor, Tensor]


class Dropout(NamedTuple):
    """Attention dropout of one call.

    Attributes
    ----------
    p : float
        Probability that an edge is dropped for a head.
    seed : int
        64 bits: Philox' key.
    offset : int
        Tells calls of one seed apart; its lower 32 bits count.
    drawn : Tensor or None
        int64 [1] on the device, in place of ``seed``: each replay of a CUDA graph draws it anew.
    """

    p: float
    seed: int
    offset: int
    drawn: Tensor | None = None

    @property
    def scale(self) -> float:
        """What a kept weight is multiplied with; 0 where everything is dropped."""
        return 1 / (1 - self.p) if self.threshold < 1 << _BITS else 0.0

    @property
    def threshold(self) -> int:
        """The smallest number of an edge that is kept, in units of 2**-24; ``p`` in float32."""
        return math.ceil(float(np.float32(self.p)) * (1 << _BITS))

    @property
    def smallest_kept(self) -> int:
        """The smallest word of 32 bits of an edge that is kept; where none is, ``scale`` is 0."""
        return min(self.threshold << (32 - _BITS), _MASK)


def draw_dropout(p: float, device: torch.device) -> Dropout:
    """Dropout of the next call on ``device``, from torch's generator there.

    ``torch.manual_seed`` decides, and each call advances the generator. On CUDA nothing waits for
    the device. While a CUDA graph is captured the seed is drawn on the device, so that each replay
    drops other edges.

    Raises
    ------
    InvalidArgument
        ``p`` is no probability.
    """
    if not 0 <= p <= 1:
        raise invalid("dropout_p", "not a probability", p, "a number from 0 to 1")
    if device.type != "cuda":
        return Dropout(p, int(torch.randint(2**63 - 1, ())), 0)
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.init()
    if torch.cuda.is_current_stream_capturing():
        drawn = torch.randint(2**63 - 1, (1,), device=device)
        return Dropout(p, 0, 0, drawn)
    generator = torch.cuda.default_generators[index]
    offset = generator.get_offset()
    generator.set_offset(offset + _OFFSETS_A_CALL)
    return Dropout(p, generator.initial_seed() & (2**64 - 1), offset)


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Four words of 32 bits for each counter; int64 tensors that hold 32 bits, of one shape."""
    x, y, z, w = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high_x, low_x = _multiply(_MULTIPLIERS[0], x)
        high_z, low_z = _multiply(_MULTIPLIERS[1], z)
        x, y, z, w = high_z ^ y ^ k0, low_z, high_x ^ w ^ k1, low_x
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return x, y, z, w


def _multiply(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """Upper and lower half of a product of 32-bit numbers, which an int64 has no room for."""
    upper, lower = a * (b >> 16), a * (b & 0xFFFF)
    return (upper + (lower >> 16)) >> 16, (lower + ((upper & 0xFFFF) << 16)) & _MASK


def philox_uniform(edges: Tensor, heads: int, dropout: Dropout) -> Tensor:
    """The uniform number of every edge and head, what all targets draw.

    Parameters
    ----------
    edges : integer [E]
        The caller's edge numbers.
    heads : int
    dropout : Dropout

    Returns
    -------
    float32 [E, heads]
        Multiples of 2**-24 in [0, 1).
    """
    edges = edges.long()
    blocks = torch.arange(-(-heads // _WORDS), device=edges.device).expand(edges.numel(), -1)
    low = (edges & _MASK)[:, None].expand_as(blocks)
    high = ((edges >> 32) & _MASK)[:, None].expand_as(blocks)
    counter = low, high, blocks, torch.full_like(blocks, dropout.offset & _MASK)
    seed = dropout.seed if dropout.drawn is None else int(dropout.drawn)
    words = torch.stack(philox(counter, (seed & _MASK, seed >> 32 & _MASK)), -1)
    return (words.flatten(1)[:, :heads] >> (32 - _BITS)).float() * 2.0**-_BITS


def keep_scale(edges: Tensor, heads: int, dropout: Dropout) -> Tensor:
    """What dropout multiplies attention weights with: 0, or 1 / (1 - p); float32 [E, heads]."""
    threshold = torch.tensor(dropout.p, dtype=torch.float32, device=edges.device)
    return (philox_uniform(edges, heads, dropout) >= threshold) * dropout.scale
