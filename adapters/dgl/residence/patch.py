"""What is replaced in DGL to make graphs resident; read without importing DGL.

Every replacement leaves CPU tensors and graphs to the stock function.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from gnn_backend.adapters.dgl.residence import boundary, support
from gnn_backend.patching import Patch
from gnn_backend.profile import count_host_operator

LAYER = "residence"
_RESIDENCE = "gnn_backend.adapters.dgl.residence"
_AUTOGRAD = "gnn_backend.adapters.dgl.autograd"
_OPERATORS = "gnn_backend.adapters.dgl.operators"


class Seam:
    """Makes a replacement that passes the stock function, and then the arguments, to another.

    Parameters
    ----------
    target : str
        ``"module:function"``, imported at the first call.
    """

    def __init__(self, target: str) -> None:
        self.fast = target  # under this name the registry shows it

    def __call__(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        target: list[Callable[..., Any]] = []
        module, name = self.fast.split(":")

        @functools.wraps(stock)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            if not target:
                target.append(getattr(importlib.import_module(module), name))
            return target[0](stock, *args, **kwargs)

        return replacement


class Operator(Seam):
    """The seam of a sparse operator; the calls that it leaves to DGL are counted."""

    def __call__(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        symbol = f"dgl.{self.fast.rpartition(':')[2]}"

        @functools.wraps(stock)
        def counted(*args: Any, **kwargs: Any) -> Any:
            count_host_operator(symbol)
            return stock(*args, **kwargs)

        return super().__call__(counted)


class Checked(Seam):
    """A seam that, once DGL is imported, checks its functions against what is known of them."""

    def resolve(self) -> None:
        if not support.why_not():
            _check_once()


@functools.cache
def _check_once() -> None:
    from gnn_backend.adapters.dgl.residence import check

    if wrong := check.check_signatures(sys.modules.get):
        warnings.warn(
            f"dgl: functions have unexpected parameters: {', '.join(wrong)}; graphs on CUDA may "
            "fail. Reinstall dgl==2.1.0, or call gnn_backend.enable(exclude='residence').",
            stacklevel=2,
        )


# ---------------------------------------------------------------------- arrays


def _arrays() -> Any:
    from gnn_backend.adapters.dgl.residence import arrays

    return arrays


def to_ndarray(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def zerocopy_to_dgl_ndarray(data: Any) -> Any:
        if not support.is_resident(data):
            return stock(data)
        return _arrays().to_array(data)

    return zerocopy_to_dgl_ndarray


def to_ndarray_for_write(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def zerocopy_to_dgl_ndarray_for_write(input: Any) -> Any:
        if not support.is_resident(input):
            return stock(input)
        return _arrays().to_array(input, written=True)

    return zerocopy_to_dgl_ndarray_for_write


def from_ndarray(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def zerocopy_from_dgl_ndarray(data: Any) -> Any:
        if type(data) is boundary._kinds.get("array"):
            return data.tensor
        return stock(data)

    return zerocopy_from_dgl_ndarray


def make_array(stock: Any, arr: Any, ctx: Any = None) -> Any:
    """``dgl.ndarray.array``."""
    from dgl import ndarray as nd

    if ctx is None or ctx.device_type != 2:
        return stock(arr) if ctx is None else stock(arr, ctx)
    host = arr.asnumpy() if isinstance(arr, nd.NDArray) else nd._np.asarray(arr)
    made = torch.as_tensor(host, device=support.device_of(ctx))
    return _arrays().DeviceArray(made)


def from_dlpack(stock: Any, dltensor: Any) -> Any:
    """``dgl.ndarray.from_dlpack``."""
    tensor = torch.utils.dlpack.from_dlpack(dltensor)  # a capsule is read once
    if tensor.is_cuda:
        return _arrays().to_array(tensor)
    return stock(torch.utils.dlpack.to_dlpack(tensor))


def make_empty(stock: Any, shape: Any, dtype: Any = "float32", ctx: Any = None) -> Any:
    """``dgl.ndarray.empty``."""
    if ctx is None or ctx.device_type != 2:
        return stock(shape, dtype) if ctx is None else stock(shape, dtype, ctx)
    from dgl.ndarray import DGLDataType

    kind = getattr(torch, str(DGLDataType(dtype)))
    made = torch.empty(tuple(shape), dtype=kind, device=support.device_of(ctx))
    return _arrays().DeviceArray(made)


def copy_array(stock: Any, self: Any, target: Any) -> Any:
    """``NDArray.copyto`` of an array of the CPU."""
    if type(target) is boundary._kinds.get("array"):
        return target.copyfrom(self)
    if getattr(target, "device_type", 1) != 2:
        return stock(self, target)
    arrays = _arrays()
    return arrays.from_host(self, support.device_of(target))


def get_stream(stock: Any, ctx: Any) -> Any:
    """``_dgl_get_stream``: DGL goes by torch's streams."""
    if ctx.device_type != 2:
        return stock(ctx)
    from gnn_backend.adapters.dgl.residence import streams

    return streams.current(ctx)


# ---------------------------------------------------------------------- page-locked memory


def _pins() -> bool:
    return not support.standin() and torch.cuda.is_available()


def lock_array(stock: Any, self: Any) -> None:
    """``NDArray.pin_memory_`` of an array of the CPU."""
    if not _pins():
        return stock(self)
    from gnn_backend.adapters.dgl.residence import pinning

    return pinning.lock_array(self)


def unlock_array(stock: Any, self: Any) -> None:
    """``NDArray.unpin_memory_`` of an array of the CPU."""
    if not _pins():
        return stock(self)
    from gnn_backend.adapters.dgl.residence import pinning

    return pinning.unlock_array(self)


def copy_to(stock: Any, self: Any, ctx: Any) -> Any:
    """``HeteroGraphIndex.copy_to``: residence begins here."""
    device = support.device_of(ctx)
    if device is None or type(self) is boundary._kinds.get("index"):
        return stock(self, ctx)
    from gnn_backend.adapters.dgl.residence.index import from_host

    return from_host(self, device)


def graph_to_cpu(stock: Any, self: Any) -> Any:
    """``DGLGraph.cpu``: also off a device for which the CPU stands in."""
    if not support.standin() or type(self._graph) is not boundary._kinds.get("index"):
        return stock(self)
    made = self.local_var()
    made._graph = self._graph.host()
    return made


def _pinnable(index: Any) -> bool:
    return type(index) is not boundary._kinds.get("index") and _pins()


def pin_memory_(stock: Any, self: Any) -> Any:
    """``HeteroGraphIndex.pin_memory_``."""
    if not _pinnable(self):
        return stock(self)
    from gnn_backend.adapters.dgl.residence import pinning

    return pinning.pin(self)


def pin_memory(stock: Any, self: Any) -> Any:
    """``HeteroGraphIndex.pin_memory``: a pinned copy."""
    if not _pinnable(self):
        return stock(self)
    from gnn_backend.adapters.dgl.residence import pinning

    return pinning.pinned_copy(self)


def unpin_memory_(stock: Any, self: Any) -> Any:
    """``HeteroGraphIndex.unpin_memory_``."""
    if not _pinnable(self):
        return stock(self)
    from gnn_backend.adapters.dgl.residence import pinning

    return pinning.unpin(self)


def is_pinned(stock: Any, self: Any) -> bool:
    """``HeteroGraphIndex.is_pinned``."""
    if not _pinnable(self):
        return stock(self)
    from gnn_backend.adapters.dgl.residence import pinning

    return pinning.is_pinned(self)


def formats(stock: Any, self: Any, formats: Any = None) -> Any:
    """``HeteroGraphIndex.formats``, which keeps what is pinned."""
    if not _pinnable(self):
        return stock(self, formats)
    from gnn_backend.adapters.dgl.residence import pinning

    return pinning.formats(stock, self, formats)


def gather_pinned_tensor_rows(stock: Any, tensor: Any, rows: Any) -> Any:
    """``dgl.utils.gather_pinned_tensor_rows``."""
    if not rows.is_cuda:
        return stock(tensor, rows)
    from gnn_backend.adapters.dgl.residence import pinning

    return pinning.rows_of_pinned(tensor, rows)


def scatter_pinned_tensor_rows(stock: Any, dest: Any, rows: Any, source: Any) -> Any:
    """``dgl.utils.scatter_pinned_tensor_rows``."""
    if not rows.is_cuda:
        return stock(dest, rows, source)
    dest[rows.cpu().long()] = source.cpu()
    return None


def seed(stock: Any, val: int) -> None:
    """``dgl.seed``: also of the draws on the device."""
    stock(val)
    from gnn_backend.adapters.dgl.residence import sampling

    sampling.seed(val)


# ---------------------------------------------------------------------- the list


def _patch(
    module: str, attribute: str, replacement: Callable[[Any], Any], also: tuple[str, ...] = ()
) -> Patch:
    return Patch("dgl", module, attribute, LAYER, replacement, also, support.why_not, shared=True)


def _transform(name: str, module: str) -> Patch:
    """A function of graphs which is a method of theirs as well."""
    functional = "dgl.transforms.functional"
    seam = Seam(f"{_RESIDENCE}.{module}:{name}")
    return _patch(functional, name, seam, also=(f"{functional}:DGLGraph.{name}",))


def _here(module: str, attribute: str, function: Callable[..., Any]) -> Patch:
    return _patch(module, attribute, Seam(f"{__name__}:{function.__name__}"))


_INDEX = "dgl.heterograph_index"
_TENSOR = "dgl.backend.pytorch.tensor"
_PIN = "dgl.utils.pin_memory"
_SPARSE = (
    "gspmm", "gspmm_hetero", "gsddmm", "gsddmm_hetero", "update_grad_minmax_hetero",
    "edge_softmax_forward", "edge_softmax_backward", "segment_reduce", "bwd_segment_cmp",
    "scatter_add", "segment_mm", "segment_mm_backward_B", "gather_mm", "gather_mm_scatter",
    "csrmm", "csrsum", "csrmask",
)  # fmt: skip

PATCHES = [
    _patch("dgl._ffi.function", "Function.__call__", boundary.calling),
    _patch(_TENSOR, "zerocopy_to_dgl_ndarray", to_ndarray),
    _patch(_TENSOR, "zerocopy_to_dgl_ndarray_for_write", to_ndarray_for_write),
    _patch(_TENSOR, "zerocopy_from_dgl_ndarray", from_ndarray),
    _here("dgl.ndarray", "array", make_array),
    _here("dgl.ndarray", "empty", make_empty),
    _here("dgl.ndarray", "from_dlpack", from_dlpack),
    _here("dgl._ffi.ndarray", "NDArrayBase.copyto", copy_array),
    _here("dgl._ffi.ndarray", "NDArrayBase.pin_memory_", lock_array),
    _here("dgl._ffi.ndarray", "NDArrayBase.unpin_memory_", unlock_array),
    _here("dgl._ffi.streams", "_dgl_get_stream", get_stream),
    _patch(_INDEX, "HeteroGraphIndex.copy_to", Checked(f"{__name__}:copy_to")),
    _here("dgl.heterograph", "DGLGraph.cpu", graph_to_cpu),
    _here(_INDEX, "HeteroGraphIndex.pin_memory", pin_memory),
    _here(_INDEX, "HeteroGraphIndex.pin_memory_", pin_memory_),
    _here(_INDEX, "HeteroGraphIndex.unpin_memory_", unpin_memory_),
    _here(_INDEX, "HeteroGraphIndex.is_pinned", is_pinned),
    _here(_INDEX, "HeteroGraphIndex.formats", formats),
    _here(_PIN, "gather_pinned_tensor_rows", gather_pinned_tensor_rows),
    _here(_PIN, "scatter_pinned_tensor_rows", scatter_pinned_tensor_rows),
    _here("dgl.random", "seed", seed),
    _patch(
        "dgl.transforms.functional",
        "metapath_reachable_graph",
        Seam(f"{_RESIDENCE}.paths:metapath_reachable_graph"),
    ),
    *(
        _patch("dgl.partition", f"NDArrayPartition.{name}", Seam(f"{_RESIDENCE}.partition:{name}"))
        for name in ("local_size", "map_to_local", "map_to_global", "generate_permutation")
    ),
    *(
        _patch("dgl.cuda.gpu_cache", f"GPUCache.{name}", Seam(f"{_RESIDENCE}.gpu_cache:{function}"))
        for name, function in {"__init__": "create", "query": "query", "replace": "replace"}.items()
    ),
    _patch(
        "dgl.optim.pytorch.sparse_optim",
        "SparseAdam.update",
        Seam(f"{_RESIDENCE}.sparse_optim:update"),
    ),
    *(
        _patch(f"dgl.sampling.{module}", name, Seam(f"{_RESIDENCE}.cpu_only:{name}"), also=also)
        for module, name, also in (
            ("neighbor", "select_topk", ("dgl.sampling.neighbor:DGLGraph.select_topk",)),
            ("node2vec_randomwalk", "node2vec_random_walk", ()),
            ("randomwalks", "pack_traces", ()),
        )
    ),
    _transform("to_simple", "simple"),
    _transform("line_graph", "paths"),
    *(_patch("dgl._sparse_ops", f"_{name}", Operator(f"{_OPERATORS}:{name}")) for name in _SPARSE),
    *(
        _patch("dgl.backend.pytorch.sparse", name, Seam(f"{_AUTOGRAD}:{name}"))
        for name in ("gspmm", "gsddmm", "gspmm_hetero", "gsddmm_hetero")
    ),
    _patch("dgl.ops.spmm", "gspmm", Seam(f"{_AUTOGRAD}:reduce_messages")),
    _patch("dgl.ops.sddmm", "gsddmm", Seam(f"{_AUTOGRAD}:apply_on_edges")),
    _patch("dgl.backend.pytorch.sparse", "edge_softmax", Operator(f"{_OPERATORS}:edge_softmax")),
    _patch(
        "dgl.backend.pytorch.sparse",
        "_cast_if_autocast_enabled",
        Seam("gnn_backend.adapters.dgl.autocast:cast_if_autocast"),
    ),
]
