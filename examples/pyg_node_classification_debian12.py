"""In which section of Debian 12 a package is, from its dependencies alone: an R-GCN in plain PyG.

Nodes are packages and virtual packages. Their inputs are counts of edges of each relation, out
and in, and a learned vector; no name, no text, no section. Of the packages that have a section, a
seeded half trains the model, a tenth chooses the epoch and the rest tests it.
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
from torch.nn.functional import cross_entropy, dropout, relu

import gnn_backend
from gnn_backend.config import config
from gnn_backend.datasets import RelationalData, load

from torch_geometric.nn import RGCNConv

DATA = Path(config.test_data or Path(__file__).parent / "data")
SPLIT_SEED, TRAIN, VAL = 0, 0.5, 0.1


class RGCN(torch.nn.Module):
    """Two layers of relations, over degrees and a learned vector for each node."""

    def __init__(self, num_nodes: int, num_inputs: int, width: int, relations: int, classes: int):
        super().__init__()
        self.lift = torch.nn.Linear(num_inputs, width)
        self.nodes = torch.nn.Parameter(torch.randn(num_nodes, width) / 8)
        self.conv1 = RGCNConv(width, width, relations)
        self.conv2 = RGCNConv(width, classes, relations)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x = dropout(relu(self.lift(x)) + self.nodes, 0.3, self.training)
        x = relu(self.conv1(x, edge_index, edge_type))
        return self.conv2(dropout(x, 0.3, self.training), edge_index, edge_type)


def degrees(data: RelationalData) -> Tensor:
    """[N, relations] logarithm of one plus the in-degree; reverses make it both directions."""
    counts = torch.zeros(data.num_nodes, data.num_edge_types, device=data.edge_type.device)
    ones = torch.ones(data.num_edges, device=data.edge_type.device)
    counts.index_put_((data.edge_index[1], data.edge_type), ones, accumulate=True)
    return counts.log1p()


def split(y: Tensor) -> dict[str, Tensor]:
    """Node ids of each part, of the nodes that have a label."""
    labelled = (y >= 0).nonzero().squeeze(1)
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    drawn = labelled[torch.randperm(len(labelled), generator=generator).to(y.device)]
    first, second = int(TRAIN * len(drawn)), int((TRAIN + VAL) * len(drawn))
    return {"train": drawn[:first], "val": drawn[first:second], "test": drawn[second:]}


def train(args: argparse.Namespace, console: Console) -> dict[str, object]:
    torch.manual_seed(args.seed)
    plain = load(str(args.data)).to(args.device)
    data, y, parts = plain.with_reverses(), plain.y, split(plain.y)
    x, edges = degrees(data), (data.edge_index, data.edge_type)
    classes = int(y.max()) + 1
    model = RGCN(data.num_nodes, x.shape[1], args.width, data.num_edge_types, classes)
    model = model.to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)

    losses, seconds, best = [], [], {"val": -1.0}
    for epoch in range(args.epochs):
        started = time.perf_counter()
        model.train()
        loss = cross_entropy(model(x, *edges)[parts["train"]], y[parts["train"]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - started)
        console.print(f"epoch {epoch:3d}  loss {losses[-1]:.4f}  {seconds[-1]:.2f} s")
        if epoch % 5 == 4 or epoch == args.epochs - 1:
            best = max(best, accuracy(model, x, edges, y, parts), key=lambda found: found["val"])

    majority = y[parts["train"]].bincount().argmax()
    baseline = {part: share(y[nodes] == majority) for part, nodes in parts.items()}
    table = Table("accuracy", *parts, title=f"{data.name}, {sum(seconds):.0f} s")
    for name, found in (("largest section", baseline), ("R-GCN", best)):
        table.add_row(name, *(f"{found[part]:.4f}" for part in parts))
    console.print(table)
    return {"losses": losses, "accuracy": best, "baseline": baseline,
            "seconds_per_epoch": statistics.median(seconds)}  # fmt: skip


@torch.no_grad()
def accuracy(
    model: RGCN, x: Tensor, edges: tuple[Tensor, Tensor], y: Tensor, parts: dict[str, Tensor]
) -> dict[str, float]:
    model.eval()
    hits = model(x, *edges).argmax(1) == y
    return {part: share(hits[nodes]) for part, nodes in parts.items()}


def share(hits: Tensor) -> float:
    return hits.float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA / "debian12_packages.npz",
                        help="npz of typed triples with node_section")  # fmt: skip
    parser.add_argument("--stock", action="store_true", help="train without acceleration")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--width", type=int, default=32)
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
