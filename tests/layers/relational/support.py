"""A typed graph and tensors for tests of relational layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.graph.relations import Relations

NODES, EDGES, TYPES, KINDS = 7, 30, 5, 3


@dataclass
class Case:
    """Ends and types of edges and nodes, and the relations of them."""

    src: Tensor
    dst: Tensor
    types: Tensor
    kinds: Tensor
    relations: Relations


def case(seed: int = 0) -> Case:
    """Node 0 has no in-edge, type 1 no edge; some edges are there twice."""
    g = torch.Generator().manual_seed(seed)
    src = torch.randint(0, NODES, (EDGES,), generator=g)
    dst = torch.randint(1, NODES, (EDGES,), generator=g)
    types = torch.tensor([0, 2, 3, 4])[torch.randint(0, 4, (EDGES,), generator=g)]
    src[1], dst[1], types[1] = src[0], dst[0], types[0]
    kinds = torch.randint(0, KINDS, (NODES,), generator=g)
    graph = Graph.from_edge_index(torch.stack([src, dst]), NODES, NODES)
    return Case(src, dst, types, kinds, Relations(graph, types, TYPES, kinds, kinds, KINDS))


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Float64, wants a gradient."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g, dtype=torch.float64).requires_grad_()


def summed(x: Tensor, dst: Tensor) -> Tensor:
    """Rows of edges added up at their destinations."""
    return x.new_zeros(NODES, *x.shape[1:]).index_add(0, dst, x)


def softmax_by_destination(logit: Tensor, dst: Tensor) -> Tensor:
    """[E, H], destination by destination."""
    out = torch.zeros_like(logit)
    for node in range(NODES):
        own = (dst == node).nonzero().flatten()
        if len(own):
            out = out.index_copy(0, own, logit[own].softmax(0))
    return out


def assert_same(found: Tensor, expected: Tensor, inputs: dict[str, Tensor]) -> None:
    """Output and the gradient of every input, with a random cotangent."""
    cotangent = normal(*expected.shape, seed=99).detach()
    torch.testing.assert_close(found, expected)
    wanted = list(inputs.values())
    grads = torch.autograd.grad(found, wanted, cotangent)
    own = torch.autograd.grad(expected, wanted, cotangent, retain_graph=True)
    for name, grad, reference in zip(inputs, grads, own, strict=True):
        torch.testing.assert_close(grad, reference, msg=lambda text, n=name: f"{n}: {text}")
