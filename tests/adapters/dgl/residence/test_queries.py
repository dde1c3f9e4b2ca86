"""Every structure query of a resident graph against stock DGL."""

from __future__ import annotations

from typing import Any

import dgl
import pytest
import torch

from tests.adapters.dgl.residence.places import IDTYPES, Place, graphs, homogeneous


def some(count: int, idtype: torch.dtype, most: int = 6) -> torch.Tensor:
    """A few ids below ``count``, some twice, in no order."""
    generator = torch.Generator().manual_seed(count)
    if count == 0:
        return torch.empty(0, dtype=idtype)
    return torch.randint(0, count, (most,), generator=generator).to(idtype)


@graphs()
def test_sizes_and_properties(place: Place, kind: Any, idtype: torch.dtype) -> None:
    def sizes(g: Any) -> Any:
        return (
            [g.num_nodes(n) for n in g.ntypes], [g.num_edges(e) for e in g.canonical_etypes],
            g.num_nodes(), g.num_edges(), g.is_block, g.is_homogeneous, g.is_unibipartite,
            g.is_multigraph, g.idtype, repr(g), g.srctypes, g.dsttypes, g.batch_size,
            str(g.metagraph().edges(keys=True)), g.is_pinned(),
        )  # fmt: skip

    place.check(sizes, kind(idtype))


@graphs()
def test_edges(place: Place, kind: Any, idtype: torch.dtype) -> None:
    def by_id(g: Any) -> Any:
        return [
            [g.edges(form=form, order="eid", etype=etype) for form in ("uv", "eid", "all")]
            for etype in g.canonical_etypes
        ]

    def by_ends(g: Any) -> Any:  # stock leaves the order of parallel edges open
        found = []
        for etype in g.canonical_etypes:
            src, dst, eids = g.edges(form="all", order="srcdst", etype=etype)
            found += [src, dst, eids.sort().values, g.find_edges(eids, etype=etype)]
        return found

    place.check(by_id, kind(idtype))
    place.check(by_ends, kind(idtype))


@graphs()
def test_edges_of_nodes_and_degrees(place: Place, kind: Any, idtype: torch.dtype) -> None:
    g = kind(idtype)

    def at_nodes(g: Any, chosen: Any) -> Any:
        found = []
        for etype in g.canonical_etypes:
            src, dst = chosen[etype[0]], chosen[etype[2]]
            found += [
                g.in_edges(dst, form="all", etype=etype), g.out_edges(src, form="all", etype=etype),
                g.in_degrees(dst, etype=etype), g.out_degrees(src, etype=etype),
                g.in_degrees(etype=etype), g.out_degrees(etype=etype),
                g.nodes(etype[0]), g.has_nodes(src, etype[0]),
            ]  # fmt: skip
        return found

    place.check(at_nodes, g, {n: some(g.num_nodes(n), idtype) for n in g.ntypes})


@graphs()
def test_edges_between_nodes(place: Place, kind: Any, idtype: torch.dtype) -> None:
    g = kind(idtype)

    def between(g: Any, chosen: Any) -> Any:
        found = []
        for etype in g.canonical_etypes:
            src, dst, eids = chosen[etype]
            found.append(g.has_edges_between(src, dst, etype=etype))
            found.append(g.find_edges(eids, etype=etype))
            u, v = g.find_edges(eids, etype=etype)
            for part in g.edge_ids(u, v, return_uv=True, etype=etype):
                found.append(part.sort().values)
            if not g.is_multigraph:
                found.append(g.edge_ids(u, v, etype=etype))
        return found

    chosen = {
        e: (some(g.num_nodes(e[0]), idtype, 9), some(g.num_nodes(e[2]), idtype, 9),
            some(g.num_edges(e), idtype))
        for e in g.canonical_etypes
    }  # fmt: skip
    for etype, (src, dst, eids) in chosen.items():
        size = min(len(src), len(dst))
        chosen[etype] = (src[:size], dst[:size], eids)
    place.check(between, g, chosen)


@graphs("dense", "bipartite")
def test_single_nodes(place: Place, kind: Any, idtype: torch.dtype) -> None:
    def single(g: Any) -> Any:
        etype = g.canonical_etypes[0]
        u, v = (int(end[0]) for end in g.edges(etype=etype))
        return (
            g.predecessors(v, etype=etype), g.successors(u, etype=etype),
            g.in_degrees(v, etype=etype), g.out_degrees(u, etype=etype),
            g.has_edges_between(u, v, etype=etype), g.has_nodes(u, etype[0]),
            g.has_nodes(99, etype[0]), g.in_edges(v, form="all", etype=etype),
        )  # fmt: skip

    place.check(single, kind(idtype))


@graphs()
def test_adjacency(place: Place, kind: Any, idtype: torch.dtype) -> None:
    def adjacency(g: Any) -> Any:
        found = []
        for etype in g.canonical_etypes:
            for form in ("coo", "csr", "csc"):
                found.append(g.adj_tensors(form, etype=etype))
            device = g.device
            for transpose in (False, True):
                matrix = g.adj_external(transpose, device, etype=etype)
                found.append(matrix.coalesce())
            found += [g.inc(kind, device, etype).coalesce() for kind in ("in", "out")]
        return found

    g = kind(idtype)
    place.check(adjacency, g)
    for etype in g.canonical_etypes:
        for transpose in (False, True):
            for form in ("csr", "coo"):
                found = place.run(lambda g, t=transpose, f=form, e=etype:
                                  g.adj_external(t, scipy_fmt=f, etype=e), g)  # fmt: skip
                wanted = g.adj_external(transpose, scipy_fmt=form, etype=etype)
                assert (found.toarray() == wanted.toarray()).all()


@pytest.mark.parametrize("idtype", IDTYPES)
def test_ids_out_of_range(place: Place, idtype: torch.dtype) -> None:
    g = place.graph(homogeneous(idtype, 13, 40))
    bad = [torch.tensor([0, n], dtype=idtype, device=place.device) for n in (-1, 13, 2**31 - 1)]
    good = torch.tensor([0, 1], dtype=idtype, device=place.device)
    of_nodes = (
        g.in_degrees, g.out_degrees, g.in_edges, g.out_edges, g.subgraph,
        lambda ids: g.has_edges_between(ids, good), lambda ids: g.has_edges_between(good, ids),
        lambda ids: g.edge_ids(good, ids), lambda ids: dgl.in_subgraph(g, ids),
        lambda ids: dgl.out_subgraph(g, ids), lambda ids: dgl.to_block(g, ids),
        lambda ids: dgl.sampling.sample_neighbors(g, ids, 2),
    )  # fmt: skip
    with place.standing_in():
        for ids in bad:
            for call in of_nodes:
                with pytest.raises(dgl.DGLError):
                    call(ids)
        for ids in (bad[0], bad[2]):
            for of_edges in (g.find_edges, g.edge_subgraph):
                with pytest.raises(dgl.DGLError):
                    of_edges(ids)
        with pytest.raises(dgl.DGLError):
            g.predecessors(13)
        assert g.in_degrees(good).tolist()  # the device still answers


@pytest.mark.parametrize("idtype", IDTYPES)
def test_arguments_of_another_kind(place: Place, idtype: torch.dtype) -> None:
    def refused(g: Any, other: Any) -> None:
        g.in_degrees(other)

    other = torch.int64 if idtype == torch.int32 else torch.int32
    place.check(refused, homogeneous(idtype), torch.tensor([0], dtype=other))

    def lists(g: Any) -> Any:
        return g.in_degrees([0, 1]), g.out_edges([2]), g.has_edges_between([0, 1], [1, 1])

    place.check(lists, homogeneous(idtype))


@graphs("homogeneous", "heterogeneous")
def test_types_of_ids(place: Place, kind: Any, idtype: torch.dtype) -> None:
    g = kind(idtype)
    place.check(lambda g: (g.int(), g.long(), g.int().long().int()), g)
    there = place.graph(g)
    built = [relation.graph for relation in there._graph.relations]
    for other in (there.int(), there.long()):  # one sorted copy serves both
        assert all(r.graph is b for r, b in zip(other._graph.relations, built, strict=True))
