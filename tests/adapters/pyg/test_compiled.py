"""``torch.compile`` of fused layers: one graph, forward and backward, current edges."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import gnn_backend
from gnn_backend import reasons
from gnn_backend.adapters.pyg import cache, clear_cache, compiled
from gnn_backend.adapters.pyg.edges import Variant
from tests.adapters.pyg.helpers import assert_equal, edges, gradients, normal

pytest.importorskip("torch_geometric")
from torch_geometric import EdgeIndex, nn
from torch_geometric.nn import GATv2Conv

N, F = 12, 6
X, EDGES = normal(N, F), edges(N, N)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compile_whole(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def layer(**arguments: Any) -> GATv2Conv:
    torch.manual_seed(0)
    return GATv2Conv(F, 4, heads=2, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"add_self_loops": False, "concat": False, "residual": True},
        {"flow": "target_to_source", "share_weights": True, "bias": False},
    ],
)
def test_equals_stock(arguments: dict[str, Any]) -> None:
    conv = layer(**arguments)
    want = gradients(conv, X, EDGES)
    with gnn_backend.enabled(mode="strict"), gnn_backend.profile() as profile:
        got = gradients(_Compiled(conv), X, EDGES)
    assert_equal(got, want)
    assert sum(profile.launches.values()) >= 3  # forward, and backward in two passes


class _Compiled(torch.nn.Module):
    """A compiled layer with the parameter names of the plain one."""

    def __init__(self, conv: torch.nn.Module) -> None:
        super().__init__()
        self._run = compile_whole(conv)
        for name, parameter in conv.named_parameters():
            self.register_parameter(name.replace(".", "_"), parameter)
        self._names = [name for name, _ in conv.named_parameters()]

    def forward(self, *arguments: Any) -> Any:
        return self._run(*arguments)

    def named_parameters(self, *_: Any, **__: Any) -> Any:
        return zip(self._names, self.parameters(), strict=True)

    def parameters(self, recurse: bool = True) -> Any:
        return self._parameters.values()


def test_model_of_two_layers_and_pair_input() -> None:
    torch.manual_seed(0)
    first, second = layer(), GATv2Conv((8, 8), 3, add_self_loops=False)

    def model(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        h = first(x, edge_index).relu()
        return second((h, h[:5]), edge_index % 5).square().sum()

    x = X.clone().requires_grad_()
    want = torch.autograd.grad(model(x, EDGES), x)[0]
    with gnn_backend.enabled(mode="strict"):
        got = torch.autograd.grad(compile_whole(model)(x, EDGES), x)[0]
    assert (got - want).abs().max() <= 2e-5 * want.abs().max()


def test_edges_are_read_at_run_time() -> None:
    conv, edge_index = layer(), EDGES.clone()
    with gnn_backend.enabled(mode="strict"):
        run = compile_whole(conv)
        run(X, edge_index)
        edge_index[0, :20] = 3
        got = run(X, edge_index)
        other = run(X, EDGES)
    assert torch.allclose(got, conv(X, edge_index), atol=1e-5)
    assert torch.allclose(other, conv(X, EDGES), atol=1e-5)


def test_graph_is_built_once() -> None:
    clear_cache()
    edge_index = EDGES.clone()
    with gnn_backend.enabled(mode="strict"):
        run = compile_whole(layer())
        for _ in range(3):
            run(X.clone().requires_grad_(), edge_index).sum().backward()
    assert len(cache._cache.graphs()) == 1
    graph = cache.graph_of(edge_index, Variant(N, N, self_loops=True))
    assert cache._cache.graphs() == [graph]


def test_new_sizes_do_not_break_the_graph() -> None:
    conv = layer()
    with gnn_backend.enabled(mode="strict"):
        run = torch.compile(conv, fullgraph=True, backend="aot_eager", dynamic=True)
        for nodes, count in ((12, 60), (20, 90), (31, 200)):
            x, edge_index = normal(nodes, F), edges(nodes, nodes, count)
            assert torch.allclose(run(x, edge_index), conv(x, edge_index), atol=1e-5)


def test_inference_and_frozen_parameters() -> None:
    conv = layer()
    want = conv(X, EDGES)
    with gnn_backend.enabled(mode="strict"):
        with torch.no_grad():
            assert torch.allclose(compile_whole(conv)(X, EDGES), want, atol=1e-5)
        frozen = copy.deepcopy(conv).requires_grad_(False)
        frozen.att.requires_grad_(True)
        compile_whole(frozen)(X, EDGES).square().sum().backward()
    assert frozen.lin_l.weight.grad is None
    conv(X, EDGES).square().sum().backward()
    assert (frozen.att.grad - conv.att.grad).abs().max() <= 2e-5 * conv.att.grad.abs().max()


def test_autocast() -> None:
    conv = layer()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        want = conv(X, EDGES)
        with gnn_backend.enabled(mode="strict"):
            got = compile_whole(conv)(X, EDGES)
    assert got.dtype == want.dtype
    assert (got - want).abs().max() <= 3e-2 * want.abs().max()


def test_what_is_not_fused_compiles_as_stock() -> None:
    conv = layer(edge_dim=2)
    weights = normal(EDGES.shape[1], 2)
    want = conv(X, EDGES, weights)
    with gnn_backend.enabled(), gnn_backend.profile() as profile:
        got = torch.compile(conv, backend="aot_eager")(X, EDGES, weights)
    assert torch.allclose(got, want, atol=1e-5)
    assert not profile.launches


@pytest.mark.parametrize("name", ["GATConv", "TransformerConv", "SuperGATConv", "AGNNConv"])
def test_other_layers_compile_as_stock_for_a_reason(name: str) -> None:
    sizes = () if name == "AGNNConv" else (F, 4)
    conv = getattr(nn, name)(*sizes)
    with gnn_backend.enabled(mode="strict"), pytest.raises(Exception) as raised:
        torch.compile(conv, backend="eager")(X, EDGES)
    assert "reason 'compiled'" in str(raised.value)
    assert "torch.compiler.disable" in reasons.explain("compiled")
    outside = torch.compiler.disable(conv)
    with gnn_backend.enabled(mode="strict"), gnn_backend.profile() as profile, torch.no_grad():
        torch.compile(lambda x: outside(x + 1, EDGES), backend="eager")(X)
    assert profile.accelerated == 1 and profile.launches


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("form", ["EdgeIndex", "csr"])
def test_other_edge_forms_run_the_stock_layer(form: str) -> None:
    sparse = torch.sparse_coo_tensor(EDGES.flip(0), torch.ones(EDGES.shape[1]), (N, N))
    given = EdgeIndex(EDGES) if form == "EdgeIndex" else sparse.coalesce().to_sparse_csr()
    conv = layer(add_self_loops=False)
    want = conv(X, given)
    with gnn_backend.enabled(), torch.no_grad():
        got = torch.compile(conv, backend="eager")(X, given)
    assert torch.allclose(got, want, atol=1e-5)


def test_ready_class() -> None:
    torch.manual_seed(0)
    conv = gnn_backend.adapters.pyg.GATv2Conv(F, 4, heads=2)
    with gnn_backend.profile() as profile:
        got = compile_whole(conv)(X, EDGES)
    assert torch.allclose(got, layer()(X, EDGES), atol=1e-5)
    assert sum(profile.launches.values()) == 1


@pytest.mark.parametrize("needs", [(True, True, True), (False, False, True)])
def test_operator_registration(needs: tuple[bool, ...]) -> None:
    operands = [
        normal(*shape, seed=k).requires_grad_(need)
        for k, (shape, need) in enumerate(zip(((N, 2, 4), (N, 2, 4), (2, 4)), needs, strict=True))
    ]
    torch.library.opcheck(compiled._forward, (*operands, EDGES, 0.2, True, False))


def test_exported_program_holds_stock_operators() -> None:
    conv = layer(add_self_loops=False)
    with gnn_backend.enabled():
        program = torch.export.export(conv, (X, EDGES))
    assert not [n for n in program.graph.nodes if "gnn_backend" in str(n.target)]
    assert torch.allclose(program.module()(X, EDGES), conv(X, EDGES), atol=1e-6)


@pytest.mark.parametrize("name", ["GATConv", "TransformerConv", "AGNNConv"])
def test_other_attention_layers_compile_to_the_stock_code(name: str) -> None:
    nn = pytest.importorskip("torch_geometric").nn
    conv = nn.AGNNConv() if name == "AGNNConv" else getattr(nn, name)(6, 4, 2)
    x, edge_index = normal(12, 6), edges(12, 12)
    want = conv(x, edge_index)
    torch._dynamo.reset()
    with gnn_backend.enabled(hosts="pyg"), gnn_backend.profile() as profile:
        got = torch.compile(conv, backend="eager")(x, edge_index)
    assert not profile.launches
    torch.testing.assert_close(got, want)
