"""The hosts' own layers: which there are, how to build one and how to call it on a graph.

PyG's convolutions are built from the names of their constructor's parameters, so most of those that
this package learns to accelerate need no entry here; for DGL's layers there is a table,
:mod:`gnn_backend.bench.dgl_layers`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gnn_backend.datasets import GraphData
from gnn_backend.errors import GNNBackendError, invalid

HOSTS = ("dgl", "pyg")
_MODULES = {"dgl": "dgl.nn.pytorch", "pyg": "torch_geometric.nn.conv"}
_PACKAGES = {"dgl": "dgl", "pyg": "torch_geometric"}

#: Layers of PyG that must be given features of the edges, as wide as those of the nodes.
PYG_EDGE_FEATURES = ("GINEConv",)

_IN_NAMES = ("in_channels", "in_feats", "in_size", "in_dim")
_OUT_NAMES = ("out_channels", "out_feats", "out_size", "out_dim", "head_size")
_HEAD_NAMES = ("heads", "num_heads")


def _perceptron(shape: Shape) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(shape.in_dim, shape.dim))


#: Constructor arguments of PyG's layers that are no sizes and have no default, by name.
_REQUIRED: dict[str, Callable[[Shape], Any]] = {
    "K": lambda shape: 3,
    "alpha": lambda shape: 0.1,
    "num_layers": lambda shape: 2,
    "nn": _perceptron,
    "aggregators": lambda shape: ["mean", "max", "min", "std"],
    "scalers": lambda shape: ["identity", "amplification", "attenuation"],
    "deg": lambda shape: torch.ones(16, dtype=torch.long),
}


@dataclass(frozen=True)
class Shape:
    """Sizes of a layer: input width, output width a head, heads."""

    in_dim: int = 128
    dim: int = 64
    heads: int = 2


def installed(host: str) -> bool:
    """Whether the host's package is importable, without importing it."""
    return importlib.util.find_spec(_PACKAGES[host]) is not None


class HostDoesNotImport(GNNBackendError):
    """A host is installed and its import fails; ``cause`` is the error in one line."""

    def __init__(self, host: str, error: Exception) -> None:
        self.cause = f"{type(error).__name__}: {[*str(error).strip().splitlines(), ''][0]}"
        super().__init__(
            f"{host}: installed but does not import; got {self.cause}, expected no error. "
            "`python -m gnn_backend doctor` says what to install."
        )


def layer_classes(host: str) -> dict[str, type[torch.nn.Module]]:
    """Public layer classes of a host by name; of PyG its convolutions. Imports the host.

    Raises
    ------
    HostDoesNotImport
        Whatever its import raised.
    """
    try:
        module = importlib.import_module(_MODULES[host])
    except Exception as error:  # a broken installation raises anything
        raise HostDoesNotImport(host, error) from error
    names = getattr(module, "__all__", None) or sorted(vars(module))
    found = ((name, getattr(module, name)) for name in names)
    return {
        name: item
        for name, item in found
        if inspect.isclass(item) and issubclass(item, torch.nn.Module)
    }


def require(host: str) -> None:
    """Raise InvalidArgument unless the host is known and installed."""
    if host not in HOSTS:
        raise invalid("host", "unknown", repr(host), " or ".join(HOSTS))
    if not installed(host):
        package = _PACKAGES[host]
        raise invalid("host", "not installed", host, package, f"pip install {package}")


def layer_class(host: str, layer: str) -> type[torch.nn.Module]:
    """One layer class; raises InvalidArgument where the host has none of that name."""
    require(host)
    classes = layer_classes(host)
    if layer not in classes:
        raise invalid("layer", f"{host} has no such layer", repr(layer), ", ".join(classes))
    return classes[layer]


def build(cls: type[torch.nn.Module], shape: Shape, **fixed: Any) -> torch.nn.Module:
    """Construct a layer of the wanted sizes.

    Parameters
    ----------
    cls : type
        A class from ``layer_classes``.
    shape : Shape
    **fixed
        Further constructor arguments, set where the constructor takes them.

    Raises
    ------
    InvalidArgument
        A required constructor argument is none of the known sizes.
    """
    parameters = dict(inspect.signature(cls.__init__).parameters)
    parameters.pop("self", None)
    required = {
        name: make(shape)
        for name, make in _REQUIRED.items()
        if name in parameters and parameters[name].default is inspect.Parameter.empty
    }
    given = {k: v for k, v in fixed.items() if k in parameters}
    wanted = {**_sizes(parameters, shape), **required, **given}
    missing = [
        name
        for name, p in parameters.items()
        if p.default is p.empty
        and name not in wanted
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if missing:
        raise invalid(
            cls.__name__, "cannot be made from sizes alone", f"arguments {', '.join(missing)}",
            "in_channels, out_channels and the like",
            "Compare a layer of your own with gnn_backend.compare(layer, x, edge_index)",
        )  # fmt: skip
    return cls(**wanted)


def build_on(
    cls: type[torch.nn.Module],
    shape: Shape,
    device: str,
    dtype: torch.dtype,
    **options: Any,
) -> torch.nn.Module:
    """The layer that commands compare: seeded weights, any in-degree allowed, and ``options``."""
    torch.manual_seed(0)
    module = build(cls, shape, allow_zero_in_degree=True, **options)
    return module.to(device=device, dtype=dtype)


def features(graph: GraphData, shape: Shape, device: str, dtype: torch.dtype) -> torch.Tensor:
    """Seeded normal node features [N, in_dim] that require a gradient."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(graph.num_nodes, shape.in_dim, generator=generator)
    return x.to(device=device, dtype=dtype).requires_grad_()


def edge_features(
    layer: str, graph: GraphData, shape: Shape, device: str, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Features of the edges by keyword, for a layer of PyG that cannot do without; else none."""
    if layer not in PYG_EDGE_FEATURES:
        return {}
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(graph.edge_index.shape[1], shape.in_dim, generator=generator)
    return {"edge_attr": values.to(device=device, dtype=dtype).requires_grad_()}


def is_resident(host: str, device: str) -> bool:
    """Whether the host's graphs on ``device`` are this package's doing, where stock cannot run."""
    if host != "dgl":
        return False
    import dgl  # noqa: F401 (``support`` asks what is imported)

    from gnn_backend.adapters.dgl.residence import support

    return not support.has_cuda_build() if device == "cuda" else support.standin()


def dgl_has_cuda() -> bool:
    """Whether DGL graphs can live on the current CUDA device while acceleration is on."""
    import dgl

    try:
        dgl.graph(([0], [0])).to("cuda")
    except dgl.DGLError:
        return False
    return True


def _sizes(parameters: Mapping[str, inspect.Parameter], shape: Shape) -> dict[str, int]:
    values = {
        **dict.fromkeys(_IN_NAMES, shape.in_dim),
        **dict.fromkeys(_OUT_NAMES, shape.dim),
        **dict.fromkeys(_HEAD_NAMES, shape.heads),
    }
    if not parameters.keys() & set(_IN_NAMES):  # whose input may be no wider than its output
        values |= dict.fromkeys(_OUT_NAMES, max(shape.in_dim, shape.dim))
    return {name: value for name, value in values.items() if name in parameters}
