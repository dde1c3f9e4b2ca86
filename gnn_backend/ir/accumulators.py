"""What a row's partial results are, and where they lie: alike for all targets."""

from __future__ import annotations

from gnn_backend.ir.traversal import Reduction, Traversal


def logit_of(reduction: Reduction) -> int:
    """The register whose softmax statistics a reduction needs, or -1."""
    return {"lse": reduction.value, "softmax": reduction.logit}.get(reduction.how, -1)


class Accumulators:
    """Places of the partial results of a row, in values.

    Attributes
    ----------
    sums : list of int
        Of each reduction; those of ``lse`` have none.
    states : dict of int to int
        Of each logit: its maxima, a head each, then its sums.
    total : int
    """

    def __init__(self, traversal: Traversal) -> None:
        self.sums: list[int] = []
        self.states: dict[int, int] = {}
        at = 0
        for reduction in traversal.reductions:
            table = traversal.outputs[reduction.table]
            self.sums.append(at)
            if reduction.how != "lse":
                at += table.heads * table.dim
        for reduction in traversal.reductions:
            logit = logit_of(reduction)
            if logit >= 0 and logit not in self.states:
                self.states[logit] = at
                at += 2 * traversal.code[logit].heads
        self.total = at
