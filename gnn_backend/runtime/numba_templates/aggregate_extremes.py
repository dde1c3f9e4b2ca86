"""The largest of the messages of a row, channel by channel: value, ties, first winner.

The smallest is the largest of the negated messages. A state is (best, ties, first); it may also
be one message: (message, 1, position).
"""

# mypy: disable-error-code=no-untyped-def

import numpy as np

from gnn_backend.runtime.cpu_vector import above_or_nan, where
from gnn_backend.runtime.numba_templates.aggregate_arguments import NAN_WINS
from gnn_backend.runtime.numba_templates.common import OFFSET, inline

START = -np.inf


@inline
def no_position(like):
    return where(like < like, OFFSET(0), OFFSET(-1))


@inline
def no_extreme(like):
    """The state of no messages."""
    return like + START, like, no_position(like)


@inline
def take_extreme(state, other, like):
    """The state of the messages of both; those of ``other`` come later."""
    best, ties, first = state
    value, value_ties, value_first = other
    taken = above_or_nan(value, best) if NAN_WINS else value > best
    ties = where(taken, value_ties, ties + where(value == best, value_ties, like))
    return where(taken, value, best), ties, where(taken, value_first, first)


@inline
def settle_extreme(state, begin, like):
    """A state whose first winner and ties are right for infinities and NaN; not for no messages."""
    best, ties, first = state
    if NAN_WINS:  # -inf never overtakes the start, and NaN has no ties
        first = where(best == START, begin, first)
        ties = where(best == best, ties, like)
    return best, ties, first


@inline
def finish_extreme(state, begin, end, like):
    """What is stored of the messages begin..end of a row: zeros where nothing has won.

    Torch's scatter counts the zero that it starts from as one more tie of a result of 0.
    """
    best, ties, first = settle_extreme(state, begin, like)
    ties += where(best == 0.0, 1.0, like)
    if not NAN_WINS:  # nothing has overtaken the start
        ties = where(best == START, like, ties)
        best = where(best == START, like, best)
    if begin == end:
        return like, like, no_position(like)
    return best, ties, first
