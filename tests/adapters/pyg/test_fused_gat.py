"""PyG's FusedGATConv without dgNN: the same as GATConv on the same edges."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import gnn_backend
from tests.adapters.pyg.helpers import assert_equal, fused, gradients, normal

pytest.importorskip("torch_geometric")
from torch_geometric.nn import FusedGATConv, GATConv

pytestmark = pytest.mark.usefixtures("twin_engine")

N, F = 12, 6
X = normal(N, F)
ONE_WAY = torch.randint(N, (2, 40), generator=torch.Generator().manual_seed(0))


def made(channels: int | tuple[int, int] = F, **options: object) -> FusedGATConv:
    torch.manual_seed(0)
    with gnn_backend.enabled(hosts="pyg"):
        return FusedGATConv(channels, 4, heads=2, add_self_loops=False, **options)


def gat_of(conv: FusedGATConv, **options: object) -> GATConv:
    """The stock layer with the same weights, rows attending to columns as the other does."""
    options |= {"add_self_loops": False, "flow": "target_to_source"}
    stock = GATConv(conv.in_channels, 4, heads=2, **options)
    stock.load_state_dict(conv.state_dict())
    return stock


@pytest.mark.parametrize("options", [{}, {"concat": False, "bias": False, "negative_slope": 0.1}])
def test_equals_gat(options: dict[str, object]) -> None:
    conv = made(**options)
    csr, csc, perm = FusedGATConv.to_graph_format(ONE_WAY, size=(N, N))
    want = gradients(gat_of(conv, **options), X, ONE_WAY)
    with fused(calls=2):
        got = gradients(conv, X, csr, csc, perm)
        gradients(conv, X, csr, csc, perm)
    assert_equal(got, want)


def test_the_stock_forward_runs_our_operator() -> None:
    """With a pair of widths, which is what it can read (``lin_src``)."""
    conv = made((F, F))
    csr, csc, perm = FusedGATConv.to_graph_format(ONE_WAY, size=(N, N))
    with gnn_backend.profile() as profile:
        stock = conv(X, csr, csc, perm)
    assert profile.calls == 0 and sum(profile.launches.values()) == 1
    conv.lin_src = copy.deepcopy(conv.lin_src)
    with fused():
        torch.testing.assert_close(conv(X, csr, csc, perm), stock)
    assert torch.equal(pickle.loads(pickle.dumps(conv))(X, csr, csc, perm), stock)


def test_without_acceleration_dgnn_is_missed() -> None:
    with pytest.raises(ModuleNotFoundError, match="dgNN"):
        FusedGATConv(F, 4, add_self_loops=False)
    with gnn_backend.enabled(hosts="pyg"), pytest.raises(ValueError, match="self-loops"):
        FusedGATConv(F, 4)


def test_an_edited_graph_is_read_again() -> None:
    conv = made().eval()
    csr, csc, perm = FusedGATConv.to_graph_format(ONE_WAY, size=(N, N))
    with fused(calls=2):
        before = conv(X, csr, csc, perm)
        csr[1].fill_(3)
        after = conv(X, csr, csc, perm)
    assert not torch.allclose(before, after)


def test_wrong_number_of_rows() -> None:
    conv = made()
    csr, csc, perm = FusedGATConv.to_graph_format(ONE_WAY, size=(N, N))
    with gnn_backend.enabled(hosts="pyg"), pytest.raises(Exception) as raised:
        conv(X[:-1], csr, csc, perm)
    # The stock forward cannot read a layer of one width, and says nothing of rows.
    assert "wrong number of rows" in str(raised.value.__cause__)
