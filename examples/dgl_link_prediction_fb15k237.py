"""Missing facts of FB15k-237: an R-GCN in plain DGL, with DistMult as its decoder.

A step asks for the tails of a batch of edges (reverses included), given the messages of other
edges, and tells each from nodes drawn at random. The test ranks every node, in both directions;
nodes that another known fact makes right are left out.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout

import gnn_backend  # before dgl, which does not load on current PyTorch without it
from gnn_backend.config import config
from gnn_backend.datasets import RelationalData, load

import dgl
from dgl.nn.pytorch import RelGraphConv

DATA = Path(config.test_data or Path(__file__).parent / "data")
Ranks = tuple[float, float]  # mean reciprocal rank, share of ranks up to ten


class RGCN(torch.nn.Module):
    """Learned nodes, each with what its edges of every relation tell about it."""

    def __init__(self, num_nodes: int, num_relations: int, width: int, bases: int) -> None:
        super().__init__()
        self.nodes = torch.nn.Parameter(torch.randn(num_nodes, width) / width**0.25)
        self.relations = torch.nn.Parameter(torch.randn(num_relations, width) / width**0.25)
        self.conv = RelGraphConv(width, width, num_relations, "basis", bases, self_loop=False)

    def forward(self, graph: dgl.DGLGraph) -> Tensor:
        """[N, width] nodes after one layer."""
        told = self.conv(graph, self.nodes, graph.edata["type"], graph.edata["norm"])
        return dropout(self.nodes + told, 0.2, self.training)


def message_graph(data: RelationalData, chosen: Tensor | slice) -> dgl.DGLGraph:
    """The chosen edges; each counts one over its destination's in-degree."""
    heads, tails = data.edge_index[:, chosen]
    graph = dgl.graph((heads, tails), num_nodes=data.num_nodes)
    graph.edata["type"] = data.edge_type[chosen]
    graph.edata["norm"] = 1 / graph.in_degrees().float()[tails].unsqueeze(1)
    return graph


def batch_loss(model: RGCN, nodes: Tensor, facts: Tensor, negatives: Tensor) -> Tensor:
    """Cross-entropy of each fact's tail among itself and the nodes ``negatives``."""
    head, relation, tail = facts
    query = nodes[head] * model.relations[relation]
    right = (query * nodes[tail]).sum(1, keepdim=True)
    scores = torch.cat([right, query @ nodes[negatives].T], 1)
    return cross_entropy(scores, torch.zeros_like(head))


def train_epoch(model: RGCN, optimizer: torch.optim.Optimizer, data: RelationalData,
                args: argparse.Namespace) -> float:  # fmt: skip
    """Every edge is asked for once; the mean loss."""
    model.train()
    facts = torch.stack([data.edge_index[0], data.edge_type, data.edge_index[1]])
    order = torch.randperm(data.num_edges).to(facts.device)
    half, losses = data.num_edges // 2, []
    for start in range(0, data.num_edges, args.batch):
        asked = order[start : start + args.batch]
        # An edge and its reverse tell the same: neither may be among the messages.
        free = torch.ones(half, dtype=torch.bool, device=order.device)
        free[asked % half] = False
        told = free.nonzero().squeeze(1)
        told = told[torch.randperm(len(told))[: args.messages // 2].to(told.device)]
        graph = message_graph(data, torch.cat([told, told + half]))
        negatives = torch.randint(data.num_nodes, (args.negatives,)).to(order.device)
        loss = batch_loss(model, model(graph), facts[:, asked], negatives)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return statistics.fmean(losses)


def both_directions(triples: Tensor, num_relations: int) -> Tensor:
    """[3, 2 K] (head, relation, tail) of triples [K, 3] and of their reverses."""
    head, relation, tail = triples.T
    reverse = torch.stack([tail, relation + num_relations, head])
    return torch.cat([torch.stack([head, relation, tail]), reverse], 1)


def ranks(data: RelationalData, scores_of, test: Tensor, known: Tensor) -> Ranks:
    """Filtered ranks of the facts ``test`` [3, K]; a tie counts one half.

    ``scores_of(heads, relations)`` gives [B, N]; ``known`` [3, M] are all facts.
    """
    key, order = (known[0] * data.num_edge_types + known[1]).sort()
    tails, found = known[2][order], []
    for head, relation, tail in zip(*(part.split(1024) for part in test), strict=True):
        scores = scores_of(head, relation)
        own = scores.gather(1, tail.unsqueeze(1)).clone()
        asked = head * data.num_edge_types + relation
        first, last = torch.searchsorted(key, asked), torch.searchsorted(key, asked, right=True)
        counts = last - first
        row = torch.arange(len(head), device=head.device).repeat_interleave(counts)
        within = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
        scores[row, tails[first[row] + within]] = -torch.inf
        found.append(1 + (scores > own).sum(1) + (scores == own).sum(1) / 2)
    rank = torch.cat(found)
    return (1 / rank).mean().item(), (rank <= 10).float().mean().item()


@torch.no_grad()
def evaluate(model: RGCN | None, data: RelationalData) -> dict[str, Ranks]:
    """Ranks of the test's facts by the model and by how often a node was seen."""
    half = data.num_edge_types // 2
    test = both_directions(data.triples["test"], half)
    known = both_directions(torch.cat(list(data.triples.values())), half)
    seen = torch.zeros(data.num_edge_types, data.num_nodes, device=test.device)
    ones = torch.ones(data.num_edges, device=test.device)
    seen.index_put_((data.edge_type, data.edge_index[1]), ones, accumulate=True)
    anywhere = seen.sum(0)
    found = {
        "node popularity": ranks(data, lambda h, r: anywhere.repeat(len(h), 1), test, known),
        "popularity in the relation": ranks(data, lambda h, r: seen[r], test, known),
    }
    if model is not None:
        model.eval()
        nodes = model(message_graph(data, slice(None)))
        decode = lambda h, r: (nodes[h] * model.relations[r]) @ nodes.T  # noqa: E731
        found["R-GCN, DistMult"] = ranks(data, decode, test, known)
    return found


def train(args: argparse.Namespace, console: Console) -> dict[str, object]:
    torch.manual_seed(args.seed)
    data = load(str(args.data)).to(args.device)
    model = RGCN(data.num_nodes, data.num_edge_types, args.width, args.bases).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, seconds = [], []
    for epoch in range(args.epochs):
        started = time.perf_counter()
        losses.append(train_epoch(model, optimizer, data, args))
        seconds.append(time.perf_counter() - started)
        console.print(f"epoch {epoch:3d}  loss {losses[-1]:.4f}  {seconds[-1]:.2f} s")
    found = evaluate(model, data)
    table = Table("test, filtered", "MRR", "Hits@10", title=f"{data.name}, {sum(seconds):.0f} s")
    for name, (mrr, hits) in found.items():
        table.add_row(name, f"{mrr:.4f}", f"{hits:.4f}")
    console.print(table)
    return {"losses": losses, "ranks": found, "seconds_per_epoch": statistics.median(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA / "fb15k_237.npz",
                        help="npz of a knowledge graph with splits")  # fmt: skip
    parser.add_argument("--stock", action="store_true", help="train without acceleration")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--bases", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16384, help="edges asked for in a step")
    parser.add_argument("--messages", type=int, default=100_000, help="edges told in a step")
    parser.add_argument("--negatives", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true", help="print the result line alone")
    args = parser.parse_args()
    if not args.stock:
        gnn_backend.enable()
    with gnn_backend.profile() as calls:
        result = train(args, Console(quiet=args.json))
    print(json.dumps({**result, "accelerated": calls.accelerated, "fallbacks": calls.fallbacks}))


if __name__ == "__main__":
    main()
