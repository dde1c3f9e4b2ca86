"""GAT, GATv2 and dot-product attention with edge operands on CUDA, against the float64 twins."""

from __future__ import annotations

import torch

from gnn_backend.profile import profile
from tests.gpu import support
from tests.gpu.support import chunks_of, table
from tests.ops.family import CASES, call
from tests.ops.family_checks import SHAPES, check, on_device, shaped
from tests.ops.support import edges_with_hubs, same_bits

pytestmark = support.MARKS


@table("case", CASES)
def test_dropout_weights_and_their_gradient(case: str) -> None:
    c = on_device(call(case, weights=True), edges_with_hubs(), support.DEVICE)
    with chunks_of(8):
        with profile() as record:
            got = check(c, 0.4)
        assert {target for target, _ in record.launches} == {"cuda"}
        assert same_bits(got, check(c, 0.4))


@table("case, heads, dim, width, dtype", SHAPES)
def test_shapes(case: str, heads: int, dim: int, width: int, dtype: torch.dtype) -> None:
    c = on_device(shaped(case, heads, dim, width, dtype), edges_with_hubs(), support.DEVICE)
    with chunks_of(8):
        check(c, factor=2.0)


@table("case", ["dot all", "gat logit", "gatv2 edge"])
def test_each_call_drops_other_edges(case: str) -> None:
    c = on_device(call(case, weights=True), edges_with_hubs(), support.DEVICE)
    torch.manual_seed(1)
    first, second = (c.run(dropout_p=0.5)[-1] for _ in range(2))
    torch.manual_seed(1)
    again = c.run(dropout_p=0.5)[-1]
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert 0.4 < (first == 0).float().mean() < 0.6


def test_a_cuda_graph_drops_other_edges_at_each_replay() -> None:
    c = on_device(call("dot bias", weights=True), edges_with_hubs(), support.DEVICE)
    c.run(dropout_p=0.5)  # compiles
    tables = list(c.operands.values())

    def step() -> tuple[torch.Tensor, ...]:
        results = c.run(dropout_p=0.5)
        return (*results, *torch.autograd.grad(results[0].sum(), tables))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    found = []
    for _ in range(2):
        graph.replay()
        found.append([t.clone() for t in captured])
    value = list(c.operands).index("v_src") + 2
    for out, weights, *grads in found:
        assert 0.4 < (weights == 0).float().mean() < 0.6
        index = c.graph.by_dst
        summed = torch.zeros_like(grads[value - 2][..., 0])
        order = torch.arange(c.graph.num_edges, device=out.device)
        order = order if index.edge_ids is None else index.edge_ids.long()
        summed.index_add_(0, index.indices.long(), weights[order])
        torch.testing.assert_close(grads[value - 2][..., 0], summed)  # backward dropped the same
    assert not torch.equal(found[0][1], found[1][1])
