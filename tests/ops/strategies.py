"""What hypothesis draws for the operators' tests."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

_SIZES = st.sampled_from([1, 2, 3, 4, 8])


@st.composite
def broadcasting(draw: Callable) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two trailing shapes that broadcast: of one shape, with ones and without leading sizes."""
    shape = draw(st.lists(_SIZES, max_size=4))

    def side() -> tuple[int, ...]:
        sizes = [size if draw(st.booleans()) else 1 for size in shape]
        return tuple(sizes[draw(st.sampled_from([0, 0, len(shape) // 2, len(shape)])) :])

    return side(), side()
