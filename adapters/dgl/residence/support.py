"""Which DGL the residence works over, and the stand-in for machines without a GPU.

Nothing here imports DGL.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from gnn_backend.config import get_config

KNOWN_VERSIONS = ("2.1.0",)
"""DGL versions whose seams are known; any other is left alone."""

_CUDA_FUNCTION = "device_api.cuda"  # what a CUDA build registers to allocate on the device


def why_not() -> str:
    """Reason why DGL is left as it is, or an empty text; asked once its core is imported."""
    libinfo = sys.modules.get("dgl._ffi.libinfo")
    version = getattr(libinfo, "__version__", None)
    if version not in KNOWN_VERSIONS:
        return (
            f"dgl {version} is not among the versions whose graphs can be made resident "
            f"({', '.join(KNOWN_VERSIONS)}); install dgl=={KNOWN_VERSIONS[-1]}"
        )
    if has_cuda_build():
        return "this DGL was built with CUDA; its own graphs are used"
    return ""


def has_cuda_build() -> bool:
    """Whether DGL's library itself can hold graphs on CUDA."""
    functions = sys.modules.get("dgl._ffi.function")
    if functions is None or not hasattr(functions, "get_global_func"):
        return False
    return functions.get_global_func(_CUDA_FUNCTION, allow_missing=True) is not None


def standin() -> bool:
    """Whether the CPU stands in for the device, so that every new graph is resident (tests)."""
    return get_config().residence_standin


def is_resident(tensor: torch.Tensor) -> bool:
    """Whether a tensor lives where resident graphs do."""
    return tensor.is_cuda or get_config().residence_standin


def device_of(context: Any) -> torch.device | None:
    """Device of residence that a DGL context names, or None for the CPU."""
    if context.device_type == 2:  # DLPack's number of CUDA
        return torch.device("cuda", context.device_id)
    return torch.device("cpu") if standin() else None
