"""Packages that the examples import only to load data or to score results, at their smallest."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor


def accuracy(predicted: Tensor, target: Tensor, task: str, num_classes: int) -> Tensor:
    """``torchmetrics.functional.accuracy`` of classes [N], or of scores [N, num_classes]."""
    if task != "multiclass":
        raise ValueError(f"task: not known here; got {task!r}, expected 'multiclass'")
    found = predicted.argmax(1) if predicted.dim() == 2 else predicted
    return (found == target).float().mean()


class StratifiedKFold:
    """``sklearn.model_selection.StratifiedKFold``: every fold has its share of every class."""

    def __init__(self, n_splits: int, *, shuffle: bool, random_state: int) -> None:
        self.n_splits, self.shuffle, self.random_state = n_splits, shuffle, random_state

    def split(self, x: Any, labels: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows to train and rows to validate with, of each fold."""
        labels = np.asarray([int(label) for label in labels])
        order = np.arange(len(labels))
        if self.shuffle:
            np.random.RandomState(self.random_state).shuffle(order)
        by_class = order[np.argsort(labels[order], kind="stable")]
        for fold in range(self.n_splits):
            held = by_class[fold :: self.n_splits]
            yield np.setdiff1d(order, held), np.sort(held)


class Evaluator:
    """``ogb.linkproppred.Evaluator`` of a dataset that is scored by reciprocal ranks."""

    def __init__(self, name: str) -> None:
        self.name = name

    def eval(self, scores: dict[str, Tensor]) -> dict[str, Tensor]:
        """Reciprocal rank of each positive edge [N] among its negative ones [N, K]."""
        positive, negative = scores["y_pred_pos"].view(-1, 1), scores["y_pred_neg"]
        above, level = (negative > positive).sum(1), (negative >= positive).sum(1)
        return {"mrr_list": 1 / ((above + level) / 2 + 1)}


def _contents() -> dict[str, dict[str, Any]]:
    from tests.dgl_examples import datasets

    return {
        "torchmetrics.functional": {"accuracy": accuracy},
        "sklearn.model_selection": {"StratifiedKFold": StratifiedKFold},
        "ogb.nodeproppred": {"DglNodePropPredDataset": datasets.NodesToClassify},
        "ogb.linkproppred": {"DglLinkPropPredDataset": datasets.Links, "Evaluator": Evaluator},
    }


_ALWAYS = ("ogb",)  # it downloads


def put(names: tuple[str, ...]) -> None:
    """Make these modules importable.

    Raises
    ------
    KeyError
        If there is nothing here for one of them.
    """
    known = _contents()
    for name in names:
        package = name.partition(".")[0]
        if package not in _ALWAYS and importlib.util.find_spec(package) is not None:
            continue
        module = _module(name)
        vars(module).update(known[name])
        setattr(_module(package), name.partition(".")[2], module)


def _module(name: str) -> types.ModuleType:
    if name not in sys.modules:
        made = sys.modules[name] = types.ModuleType(name)
        made.__spec__ = importlib.machinery.ModuleSpec(name, None)  # find_spec wants one
    return sys.modules[name]
