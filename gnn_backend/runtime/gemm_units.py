"""Kernel instances of the typed linear, and what they are tuned by."""

from __future__ import annotations

import itertools
from functools import lru_cache

from gnn_backend.runtime.instances import Unit
from gnn_backend.runtime.instances import _cuda_type as cuda_type
from gnn_backend.runtime.instances import _entry as entry
from gnn_backend.runtime.selection import DTYPE_NAMES

GEMM_BLOCK = 128  # threads (kernels/gemm.cuh)
SUM_BLOCK = 256  # threads (kernels/weight_grad.cuh)
ROWS = 128  # places a tile of the product of rows (``Linear::ROWS``)
ACCESS = 16  # bytes of a load
WIDTH = 64  # rows and columns of a block of a weight's gradient (``Gradient::WIDTH``)
#: Columns of a block, and how long each takes beside those of a wide one: narrow blocks read more
#: of x for a product.
_COLUMNS = {16: 1.6, 32: 1.2, 64: 1.0}
_NARROWEST = {False: 16, True: 32}
#: Blocks a multiprocessor by (on tensor cores, columns, aligned) that the registers allow without
#: spills, where these are not 4.
_MIN_BLOCKS = {(False, 64, False): 3, (True, 64, True): 3, (True, 64, False): 3}


def columns_for(outer: int, tensor: bool) -> int:
    """Columns of a block for results of ``outer`` columns."""
    possible = [c for c in _COLUMNS if c >= _NARROWEST[tensor]]
    return min(possible, key=lambda c: -(-outer // c) * c * _COLUMNS[c])


@lru_cache(maxsize=64)
def linear_unit(dtype: str, tensor: bool, columns: int, aligned: bool) -> Unit:
    """The product of rows with the weight of their type.

    Parameters
    ----------
    dtype : str
    tensor : bool
        On tensor cores; float32 then as tf32.
    columns : int
        Of a block (:func:`columns_for`).
    aligned : bool
        Rows of x, of the weight and of the result are multiples of 16 bytes.
    """
    name = f"linear_{_form(dtype, tensor)}_{columns}{'' if aligned else '_odd'}"
    layout = f"gnnb::Linear<{_types(dtype, tensor)}, {columns}, {_bool(aligned)}>"
    text = '#define GNNB_CROWDED\n#include "typed_linear.cuh"\n'
    blocks = _MIN_BLOCKS.get((tensor, columns, aligned), 4)
    text += entry(name, "LinearArgs", GEMM_BLOCK, f"typed_linear<{layout}>", blocks)
    return Unit(name, (name,), text)


@lru_cache(maxsize=64)
def weight_grad_unit(dtype: str, tensor: bool, aligned: bool, scaled: bool) -> Unit:
    """The gradient of the weights, as partials; ``scaled``: places have a factor."""
    suffix = f"{'_scaled' if scaled else ''}{'' if aligned else '_odd'}"
    name = f"weight_grad_{_form(dtype, tensor)}{suffix}"
    layout = f"gnnb::Gradient<{_types(dtype, tensor)}, {_bool(aligned)}, {_bool(scaled)}>"
    text = '#define GNNB_CROWDED\n#include "weight_grad.cuh"\n'
    text += entry(name, "WeightGradArgs", GEMM_BLOCK, f"weight_grad<{layout}>", 4)
    return Unit(name, (name,), text)


@lru_cache(maxsize=8)
def weight_grad_sum_unit(dtype: str) -> Unit:
    """The sum of partials, in the order of the chunks."""
    name = f"weight_grad_sum_{dtype}"
    text = '#include "weight_grad.cuh"\n'
    body = f"weight_grad_sum<{cuda_type(dtype)}>"
    text += entry(name, "WeightGradSumArgs", SUM_BLOCK, body)
    return Unit(name, (name,), text)


def _form(dtype: str, tensor: bool) -> str:
    return "tf32" if tensor and dtype == "f32" else dtype


def _types(dtype: str, tensor: bool) -> str:
    return f"{cuda_type(dtype)}, gnnb::{'TENSOR' if tensor else 'EXACT'}"


def _bool(flag: bool) -> str:
    return str(flag).lower()


def all_units() -> list[Unit]:
    """Every unit that a call can ask for."""
    forms = [("f32", False), *((dtype, True) for dtype in DTYPE_NAMES.values())]
    flags = (True, False)
    products = [
        linear_unit(dtype, tensor, columns, aligned)
        for (dtype, tensor), columns, aligned in itertools.product(forms, _COLUMNS, flags)
        if columns >= _NARROWEST[tensor]
    ]
    grads = [weight_grad_unit(*f, a, s) for f, a, s in itertools.product(forms, flags, flags)]
    return [*products, *grads, *map(weight_grad_sum_unit, DTYPE_NAMES.values())]
