"""A layer's result is the caller's: it may be changed in place before backward, as with stock."""

from __future__ import annotations

import pytest
import torch

import gnn_backend


def result(host: str, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    source, destination = torch.arange(12) % 7, torch.arange(12) % 5
    torch.manual_seed(3)
    if host == "pyg":
        layer = pytest.importorskip("torch_geometric.nn").GATv2Conv(6, 4, heads=2, bias=False)
        out = layer(x, torch.stack([source, destination]))
    else:
        dgl = pytest.importorskip("dgl")
        layer = pytest.importorskip("dgl.nn").GATv2Conv(6, 4, 2, allow_zero_in_degree=True)
        out = layer(dgl.graph((source, destination), num_nodes=7), x).flatten(1)
    out = torch.nn.functional.relu(out.add_(0.1), inplace=True)
    return out, list(torch.autograd.grad(out.sum(), [x, *layer.parameters()], allow_unused=True))


@pytest.mark.parametrize("host", ["pyg", "dgl"])
def test_changed_in_place_before_backward(host: str) -> None:
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    want, want_grads = result(host, x)
    with gnn_backend.enabled(), gnn_backend.profile() as record:
        got, got_grads = result(host, x)
    assert record.launches and not record.fallbacks
    torch.testing.assert_close(got, want)
    for mine, theirs in zip(got_grads, want_grads, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
