"""Which crowd-workers get banned, on Tolokers: a two-layer GATv2 in plain PyG."""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy, dropout, elu

import gnn_backend; gnn_backend.enable()  # fmt: skip

from torch_geometric.data import Data
from torch_geometric.nn import GATv2Conv

TOLOKERS = Path(__file__).resolve().parent / "data" / "tolokers.npz"
SPLITS = ("train_mask", "val_mask", "test_mask")


def load(path: Path, device: torch.device) -> Data:
    """Both directions of every edge, ten features a worker, one of two labels, three masks."""
    file = np.load(path)
    return Data(
        x=torch.from_numpy(file["x"]),
        edge_index=torch.from_numpy(file["edge_index"].astype(np.int64)),
        y=torch.from_numpy(file["y"].astype(np.int64)),
        **{name: torch.from_numpy(file[name]) for name in SPLITS},
    ).to(device)


class GATv2(torch.nn.Module):
    """Two heads of 64 features, then one head of class scores."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.lift = torch.nn.Linear(in_channels, 128)
        self.conv1 = GATv2Conv(128, 64, heads=2)
        self.conv2 = GATv2Conv(128, num_classes, heads=1)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        x = elu(self.lift(x))
        x = elu(self.conv1(x, edge_index))
        x = dropout(x, 0.2, self.training)
        return self.conv2(x, edge_index)


def roc_auc(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Chance that a random positive scores above a random negative; a tie counts one half."""
    order, counts = scores.unique(return_inverse=True, return_counts=True)[1:]
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[order]
    positive = labels == 1
    wins = ranks[positive].mean() - (int(positive.sum()) + 1) / 2
    return (wins / (~positive).sum()).item()


def train(args: argparse.Namespace) -> dict[str, object]:
    torch.manual_seed(args.seed)
    data = load(args.graph, torch.device(args.device))
    model = GATv2(data.num_features, 2).to(data.x.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

    losses, seconds = [], []
    for epoch in range(args.epochs):
        started = time.perf_counter()
        model.train()
        scores = model(data.x, data.edge_index)
        loss = cross_entropy(scores[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # waits for the GPU
        seconds.append(time.perf_counter() - started)
        if not args.json:
            print(f"epoch {epoch:3d}  loss {losses[-1]:.4f}  {seconds[-1]:.3f} s")

    model.eval()
    with torch.no_grad():
        scores = model(data.x, data.edge_index)
    hits = (scores.argmax(1) == data.y).float()
    margin = (scores[:, 1] - scores[:, 0])[data.test_mask]
    return {
        "losses": losses,
        "accuracy": {name.removesuffix("_mask"): hits[data[name]].mean().item() for name in SPLITS},
        "test_roc_auc": roc_auc(margin, data.y[data.test_mask]),
        "seconds_per_step": statistics.median(seconds[1:] or seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path, default=TOLOKERS, help="npz with Tolokers' fields")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true", help="print the result line alone")
    print(json.dumps(train(parser.parse_args())))


if __name__ == "__main__":
    main()
