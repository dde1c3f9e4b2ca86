"""Pieces cut out of real graphs, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

Array = np.ndarray
SECTIONS = ("math", "sound", "video", "electronics")
_SUBJECTS = 60


def neighbourhoods(edge_index: Array, count: int, seed: int) -> list[tuple[Array, Array]]:
    """Random nodes with their neighbours: node ids, the chosen first; and edges [2, E] of them."""
    size = int(edge_index.max()) + 1
    ones = np.ones(edge_index.shape[1], np.int8)
    matrix = scipy.sparse.csr_array((ones, tuple(edge_index)), shape=(size, size))
    chosen = np.random.RandomState(seed).permutation(size)[:count]
    made = []
    for node in chosen:
        around = matrix.indices[matrix.indptr[node] : matrix.indptr[node + 1]]
        nodes = np.concatenate([[node], np.setdiff1d(around, [node])]).astype(np.int64)
        inside = matrix[nodes][:, nodes].tocoo()
        made.append((nodes, np.stack([inside.row, inside.col]).astype(np.int64)))
    return made


def relations_of_sections(
    triples: Array, relation_names: Array, node_section: Array, section_names: Array
) -> tuple[dict[tuple[str, str, str], Array], dict[str, int], Array]:
    """Packages of :data:`SECTIONS` and what they are related to, in both directions.

    Returns
    -------
    dict
        Edges [2, E] by (source type, relation, destination type); types ``package``, ``other``.
    dict
        Number of nodes of each type.
    int64 [packages]
        Section of each package, a position in :data:`SECTIONS`.
    """
    names = list(section_names)
    of_section = np.full(len(names) + 1, -1)  # the last one for nodes without section, -1
    of_section[[names.index(name) for name in SECTIONS]] = np.arange(len(SECTIONS))
    label = of_section[node_section]
    head, relation, tail = triples.T
    near = (label[head] >= 0) | (label[tail] >= 0)
    head, relation, tail = head[near], relation[near], tail[near]
    seen = np.zeros(len(label), bool)
    seen[head] = seen[tail] = True
    place = np.full(len(label), -1)
    members = {"package": seen & (label >= 0), "other": seen & (label < 0)}
    for member in members.values():
        place[member] = np.arange(member.sum())
    edges: dict[tuple[str, str, str], Array] = {}
    for number, name in enumerate(relation_names):
        for source in members:
            for target in members:
                kept = (relation == number) & members[source][head] & members[target][tail]
                ends = np.stack([place[head[kept]], place[tail[kept]]])
                if kept.any():
                    edges[source, f"{name}", target] = ends
                    edges[target, f"rev-{name}", source] = ends[::-1].copy()
    return edges, {k: int(m.sum()) for k, m in members.items()}, label[members["package"]]


def papers_and_words(
    edge_index: Array, indptr: Array, words: Array, classes: Array
) -> dict[str, Any]:
    """Matrices of ACM.mat: papers by authors, papers, subjects and classes."""
    papers = len(indptr) - 1
    row = np.repeat(np.arange(papers), np.diff(indptr))
    matrix = scipy.sparse.csc_matrix((np.ones(len(words)), (row, words)))
    by_frequency = np.argsort(-np.diff(matrix.indptr), kind="stable")
    cites = edge_index[:, edge_index[0] < edge_index[1]]
    of_paper = scipy.sparse.csr_matrix
    one = np.ones(cites.shape[1])
    return {
        "PvsA": matrix[:, np.sort(by_frequency[_SUBJECTS:])],
        "PvsP": of_paper((one, tuple(cites)), shape=(papers, papers)),
        "PvsL": matrix[:, np.sort(by_frequency[:_SUBJECTS])],
        "PvsC": of_paper((np.ones(papers), (np.arange(papers), classes))),
    }


def trees(triples: Array, symbols: Array, count: int, seed: int) -> list[tuple[Array, Array]]:
    """Trees of 6 to 40 nodes under synsets of WordNet.

    Returns
    -------
    list of (int64 [N], int64 [N])
        Parent of each node (-1: the root, node 0), and number of its pointers in WordNet.
    """
    down = triples[triples[:, 1] == list(symbols).index("~")]
    first = np.unique(down[:, 2], return_index=True)[1]  # a synset may lie under several
    down = down[np.sort(first)]
    down = down[np.argsort(down[:, 0], kind="stable")]
    size = int(triples[:, [0, 2]].max()) + 1
    begin = np.searchsorted(down[:, 0], np.arange(size + 1))
    pointers = np.bincount(triples[:, 0], minlength=size)
    made: list[tuple[Array, Array]] = []
    for root in np.random.RandomState(seed).permutation(size):
        nodes, parents, at = [int(root)], [-1], 0
        while at < len(nodes) <= 40:
            below = down[begin[nodes[at]] : begin[nodes[at] + 1], 2]
            nodes += below.tolist()
            parents += [at] * len(below)
            at += 1
        if 6 <= len(nodes) <= 40:
            made.append((np.array(parents), pointers[nodes]))
            if len(made) == count:
                break
    return made


def heights(parent: Array) -> Array:
    """Height of each node, 0 for a leaf; parents stand before their children."""
    height = np.zeros(len(parent), np.int64)
    for node in range(len(parent) - 1, 0, -1):
        height[parent[node]] = max(height[parent[node]], height[node] + 1)
    return height
