"""Node classification on the Cora citation network: a two-layer GATv2 in plain DGL."""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy, elu

import gnn_backend; gnn_backend.enable()  # fmt: skip

import dgl
from dgl.nn.pytorch import GATv2Conv

CORA = Path(__file__).resolve().parent / "data" / "cora.npz"


def load(path: Path, device: torch.device) -> tuple[dgl.DGLGraph, dict[str, torch.Tensor]]:
    """Graph with self-loops, features in ``ndata["x"]`` and labels in ``ndata["y"]``; splits."""
    file = np.load(path)
    num_nodes = int(file["num_nodes"])
    graph = dgl.graph(tuple(file["edge_index"].astype(np.int64)), num_nodes=num_nodes)
    graph = dgl.add_self_loop(graph)

    x = torch.zeros(num_nodes, int(file["x_dim"]))
    rows = np.repeat(np.arange(num_nodes), np.diff(file["x_indptr"]))
    x[rows, file["x_indices"].astype(np.int64)] = torch.from_numpy(file["x_data"])
    graph.ndata["x"] = x / x.sum(1, keepdim=True).clamp(min=1)
    graph.ndata["y"] = torch.from_numpy(file["y"].astype(np.int64))

    parts = ("train", "val", "test")
    splits = {part: torch.from_numpy(file[f"{part}_idx"].astype(np.int64)) for part in parts}
    return graph.to(device), {part: index.to(device) for part, index in splits.items()}


class GATv2(torch.nn.Module):
    """Eight heads of eight features, then one head of class scores."""

    def __init__(self, in_feats: int, num_classes: int, dropout: float = 0.6) -> None:
        super().__init__()
        self.conv1 = GATv2Conv(in_feats, 8, num_heads=8, feat_drop=dropout)
        self.conv2 = GATv2Conv(64, num_classes, num_heads=1, feat_drop=dropout)

    def forward(self, graph: dgl.DGLGraph, x: torch.Tensor) -> torch.Tensor:
        x = elu(self.conv1(graph, x).flatten(1))
        return self.conv2(graph, x).mean(1)


def train(args: argparse.Namespace) -> dict[str, object]:
    torch.manual_seed(args.seed)
    graph, splits = load(args.graph, torch.device(args.device))
    x, y = graph.ndata["x"], graph.ndata["y"]
    model = GATv2(x.shape[1], int(y.max()) + 1).to(graph.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    losses, seconds = [], []
    for epoch in range(args.epochs):
        started = time.perf_counter()
        model.train()
        scores = model(graph, x)
        loss = cross_entropy(scores[splits["train"]], y[splits["train"]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - started)
        if not args.json and epoch % 10 == 0:
            print(f"epoch {epoch:3d}  loss {losses[-1]:.4f}")

    model.eval()
    with torch.no_grad():
        hits = (model(graph, x).argmax(1) == y).float()
    return {
        "losses": losses,
        "accuracy": {part: hits[index].mean().item() for part, index in splits.items()},
        "seconds_per_step": statistics.median(seconds[1:] or seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path, default=CORA, help="npz file with Cora's fields")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true", help="print the result line alone")
    print(json.dumps(train(parser.parse_args())))


if __name__ == "__main__":
    main()
