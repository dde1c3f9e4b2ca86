"""Any layer of a host on any graph: constructed, with what its forward takes, and compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gnn_backend.bench import fused_gat, hosts, pyg_layers
from gnn_backend.bench.hosts import Shape
from gnn_backend.compare import Comparison, Sample, compare_samples
from gnn_backend.datasets import GraphData
from gnn_backend.errors import Unsupported

#: Layers that map rows by their type and do nothing else.
_LINEAR_LAYERS = frozenset(
    {"dgl.HeteroLinear", "dgl.TypedLinear", "pyg.HeteroDictLinear", "pyg.HeteroLinear"}
)


class Called(nn.Module):
    """A layer that is called in another way than by its ``forward``."""

    def __init__(self, layer: nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.run = layer, run

    def forward(self, **inputs: Any) -> Any:
        return self.run(self.layer, *inputs.values())


@dataclasses.dataclass(frozen=True)
class Request:
    """Which layer to run on what.

    Attributes
    ----------
    host : str
    layer : str
        A class of the host, see ``hosts.layer_classes``; for DGL also ``ops.`` and an operator.
    data : GraphData
    shape : Shape
    device : str
        ``"cpu"`` or ``"cuda"``.
    dtype : torch.dtype
    options : dict
        Further constructor arguments.
    without : tuple of str
        Keywords of the call that are left out.
    """

    host: str
    layer: str
    data: GraphData
    shape: Shape
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    without: tuple[str, ...] = ()


def sample(request: Request) -> Sample:
    """A layer with seeded weights, and seeded inputs, the same on every device.

    Raises
    ------
    InvalidArgument
        If the host has no such layer, or it is none that can be compared.
    """
    data, shape, device, dtype = request.data, request.shape, request.device, request.dtype
    torch.manual_seed(0)
    if request.host == "dgl":
        return _dgl_sample(request)
    if request.layer == fused_gat.NAME:
        return fused_gat.sample(request)
    hosts.require(request.host)
    if request.layer in pyg_layers.LAYERS:
        return pyg_layers.sample(request)
    cls = hosts.layer_class(request.host, request.layer)
    module = hosts.build_on(cls, shape, device, dtype, **request.options)
    x = hosts.features(data, shape, device, dtype)
    given = hosts.edge_features(request.layer, data, shape, device, dtype)
    return Sample(module, (x, data.edge_index.to(device)), given)


def _dgl_sample(request: Request) -> Sample:
    hosts.require("dgl")
    from gnn_backend.bench import dgl_layers
    from gnn_backend.bench.dgl_inputs import Inputs

    row = dgl_layers.row(request.layer)
    given = Inputs(request.data, request.shape, request.device, request.dtype)
    layer = dgl_layers.construct(request.layer, given, **request.options)
    layer = layer.to(device=request.device, dtype=request.dtype)
    if row.run is not None:
        by_name = {name: getattr(given, name) for _, name in row.inputs}
        return Sample(Called(layer, row.run), (), by_name, row.rematerializes)
    args = tuple(getattr(given, name) for keyword, name in row.inputs if not keyword)
    wanted = {keyword: name for keyword, name in row.inputs if keyword not in request.without}
    kwargs = {keyword: getattr(given, name) for keyword, name in wanted.items() if keyword}
    return Sample(layer, args, kwargs, row.rematerializes)


def samples(request: Request) -> tuple[Sample, Sample | None]:
    """A sample, and what stock runs instead where it cannot run this.

    For DGL's graphs on CUDA that is the same on the CPU.

    Raises
    ------
    Unsupported
        ``dgl-no-cuda`` where DGL's graphs cannot be made resident.
    """
    if (request.host, request.layer) == ("pyg", fused_gat.NAME):
        return sample(request), fused_gat.stock(request)
    if not hosts.is_resident(request.host, request.device):
        return sample(request), None
    from gnn_backend.api import enabled

    stock = sample(dataclasses.replace(request, device="cpu"))
    with enabled(hosts=request.host):
        if request.device == "cuda" and not hosts.dgl_has_cuda():
            raise Unsupported("dgl-no-cuda")
        return sample(request), stock


def compare(host: str, ours: Sample, stock: Sample | None, *, repeats: int) -> Comparison:
    """Compare what :func:`samples` made of a host's layer; with 0 repeats nothing is measured."""
    found = compare_samples(ours, stock, repeats=repeats)
    if host != "dgl" or found.reason != "no-kernel":
        return found
    # DGL's operators are patched and counted, so it is known that the layer called none.
    return dataclasses.replace(found, reason="no-operators", reasons=["no-operators"])


def products_alone(host: str, found: Comparison) -> bool:
    """Whether typed matrix products are all of ours that a layer of a host ran.

    They launch no kernel of ours where torch's (grouped) products of sorted rows are as fast.
    """
    products = _LINEAR_LAYERS
    if host == "dgl":
        from gnn_backend.adapters.dgl.kernels import PRODUCTS

        products |= PRODUCTS
    return bool(found.symbols) and products.issuperset(found.symbols)
