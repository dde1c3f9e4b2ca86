"""Self-check: that DGL is what the seams were written for."""

from __future__ import annotations

import inspect
from typing import Any

from gnn_backend.adapters.dgl.residence import native
from gnn_backend.errors import GNNBackendError

# Functions that are replaced whole, and the parameters that their replacements expect.
SIGNATURES = {
    "dgl._sparse_ops:_gspmm": "gidx op reduce_op u e",
    "dgl._sparse_ops:_gsddmm": "gidx op lhs rhs lhs_target rhs_target",
    "dgl._sparse_ops:_gspmm_hetero": "gidx op reduce_op u_len u_and_e_tuple",
    "dgl._sparse_ops:_gsddmm_hetero":
        "gidx op lhs_len lhs_target rhs_target lhs_and_rhs_tuple",
    "dgl._sparse_ops:_segment_reduce": "op feat offsets",
    "dgl._sparse_ops:_scatter_add": "x idx m",
    "dgl.backend.pytorch.sparse:edge_softmax": "gidx logits eids norm_by",
    "dgl.backend.pytorch.sparse:gspmm": "gidx op reduce_op lhs_data rhs_data",
    "dgl.backend.pytorch.sparse:gsddmm": "gidx op lhs_data rhs_data lhs_target rhs_target",
    "dgl.backend.pytorch.sparse:gspmm_hetero": "g op reduce_op lhs_len lhs_and_rhs_tuple",
    "dgl.backend.pytorch.sparse:gsddmm_hetero":
        "g op lhs_len lhs_target rhs_target lhs_and_rhs_tuple",
    "dgl.ops.spmm:gspmm": "g op reduce_op lhs_data rhs_data",
    "dgl.ops.sddmm:gsddmm": "g op lhs_data rhs_data lhs_target rhs_target",
    "dgl.sampling.neighbor:select_topk":
        "g k weight nodes edge_dir ascending copy_ndata copy_edata output_device",
    "dgl.sampling.node2vec_randomwalk:node2vec_random_walk":
        "g nodes p q walk_length prob return_eids",
    "dgl.sampling.randomwalks:pack_traces": "traces types",
    "dgl.heterograph_index:HeteroGraphIndex.copy_to": "self ctx",
    "dgl.transforms.functional:to_simple":
        "g return_counts writeback_mapping copy_ndata copy_edata aggregator",
}  # fmt: skip


class UnknownHost(GNNBackendError, RuntimeError):
    """DGL is not what its version says it is."""


def check_names() -> None:
    """Every packed function that is answered natively exists in this DGL.

    Raises
    ------
    UnknownHost
        Naming those that do not.
    """
    from dgl._ffi.function import list_global_func_names

    known = {name.rpartition(".")[2] for name in list_global_func_names()}
    if missing := sorted(set(native.TABLE) - known):
        raise UnknownHost(
            f"dgl: functions are missing from its library; got none of {', '.join(missing)}, "
            "expected those of dgl 2.1.0. Reinstall dgl==2.1.0, or call "
            "gnn_backend.enable(exclude='residence')."
        )


def check_signatures(module_of: Any) -> list[str]:
    """Replaced functions whose parameters are not the known ones; ``module_of`` finds modules."""
    wrong = []
    for place, parameters in SIGNATURES.items():
        name, attribute = place.split(":")
        found: Any = module_of(name)
        if found is None:
            continue
        for part in attribute.split("."):
            found = getattr(found, part, None)
        if found is None or list(inspect.signature(found).parameters) != parameters.split():
            wrong.append(place)
    return wrong
