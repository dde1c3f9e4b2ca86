"""Names of generated graphs, and the sizes that stand behind them."""

from __future__ import annotations

from gnn_backend.datasets.generators import Schema

#: Heavy-tailed graphs by name: (nodes, edges).
NAMED_GRAPHS: dict[str, tuple[int, int]] = {
    "tolokers-like": (11_758, 1_038_000),
    "arxiv-like": (169_343, 2_315_598),
    "reddit-like": (232_965, 114_615_892),
    "products-like": (2_449_029, 123_718_280),
}
#: Stochastic block models by name: nodes, nodes a block, density.
BLOCK_MODELS: dict[str, tuple[int, int, float]] = {"block-model": (16_384, 256, 0.5)}
#: Road-like grids by name: rows, columns.
GRIDS: dict[str, tuple[int, int]] = {"grid": (1000, 1000)}
#: Typed graphs of the sizes of published ones by name: nodes, edges, node types, edge types.
RELATIONAL: dict[str, tuple[int, int, int, int]] = {
    "aifb": (7_262, 48_810, 7, 104),
    "mutag": (27_163, 148_100, 5, 50),
    "bgs": (94_806, 672_884, 27, 122),
    "am": (1_885_136, 5_668_682, 7, 108),
    "ogbn-mag": (1_939_743, 21_111_007, 4, 4),
    "wikikg2": (2_500_604, 16_109_182, 1, 535),
    "fb15k-237": (14_541, 620_232, 1, 474),
    "biokg": (93_773, 4_762_678, 5, 51),
}
#: Of those, what is known of the types of nodes and of what edges join; of others it is drawn.
SCHEMAS: dict[str, Schema] = {
    "ogbn-mag": Schema(
        nodes={"author": 1_134_649, "field": 59_965, "institution": 8_740, "paper": 736_389},
        edges={
            ("author", "affiliated_with", "institution"): 1_043_998,
            ("author", "writes", "paper"): 7_145_660,
            ("paper", "cites", "paper"): 5_416_271,
            ("paper", "has_topic", "field"): 7_505_078,
        },
    )
}
TYPED = ":typed"  # behind the name of a relational graph: nodes have types, which edges keep to


def names() -> list[str]:
    """Every name, without what may stand behind it."""
    return [*NAMED_GRAPHS, *BLOCK_MODELS, *GRIDS, *RELATIONAL]
