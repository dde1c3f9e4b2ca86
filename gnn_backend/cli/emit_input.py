"""What ``emit`` works on: a program, the arguments of a call, and a graph with its types."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gnn_backend.datasets import RelationalData, load
from gnn_backend.errors import GNNBackendError, invalid
from gnn_backend.graph import Graph
from gnn_backend.graph.relations import Relations
from gnn_backend.ir.emission import Emission, emit
from gnn_backend.ir.passes import NAMED
from gnn_backend.layers.relational.models import MODELS, layer_arguments
from gnn_backend.program import RelationalProgram

_EXAMPLE = "example"
_TRIPLES = "Files with triples have types of edges, those with node_type also of nodes."


@dataclass(frozen=True)
class Emitted:
    """A program, what it is for, and what becomes of it.

    Attributes
    ----------
    model, graph : str
        As named in the call.
    program : RelationalProgram
    relations : Relations
    options, target, dtype : str
    emission : Emission
    """

    model: str
    graph: str
    program: RelationalProgram
    relations: Relations
    options: str
    target: str
    dtype: str
    emission: Emission


def emission(
    model: str, graph: str, types: str, sizes: tuple[int, int, int], options: str, target: str,
    dtype: str, backward: bool,
) -> Emitted:  # fmt: skip
    """Compile a program for a graph.

    Parameters
    ----------
    model : str
        Of ``MODELS``, or ``FILE.py:NAME``.
    graph : str
        A file or the name of a graph.
    types : {"file", "none", "edge", "edge,node"}
    sizes : (int, int, int)
        Width of the features and of the result, and heads, of a model.
    options : str
        Of ``passes.NAMED``.
    target, dtype : str
    backward : bool

    Raises
    ------
    InvalidArgument
        There is no such model, program, file or type.
    """
    module = None if model in MODELS else _module(model)
    relations = _relations(graph, types)
    if module is None:
        program = MODELS[model]
        shapes, constants = layer_arguments(model, relations, *sizes)
    else:
        program = _program(module, model)
        shapes, constants = _example(module, model, relations)
    traced = program.trace(shapes, **constants)
    found = emit(
        traced, relations, NAMED[options], target=target, dtype=getattr(torch, dtype),
        backward=backward,
    )  # fmt: skip
    return Emitted(model, graph, program, relations, options, target, dtype, found)


def _relations(name: str, types: str) -> Relations:
    data = load(name)
    graph = Graph.from_edge_index(data.edge_index, data.num_nodes, data.num_nodes)
    typed = data if isinstance(data, RelationalData) else None
    wanted = types.split(",")
    if typed is None and "edge" in wanted:
        raise invalid("--types", "the graph's edges have no types", types, "none", _TRIPLES)
    if (typed is None or typed.node_type is None) and "node" in wanted:
        raise invalid("--types", "the graph's nodes have no types", types, "edge or none", _TRIPLES)
    if typed is None or types == "none":
        return Relations(graph)
    kinds = None if types == "edge" else typed.node_type
    number = None if kinds is None else typed.num_node_types
    return Relations(graph, typed.edge_type, typed.num_edge_types, kinds, kinds, number)


def _module(model: str) -> ModuleType:
    """The user's file, imported as Python would import it from its folder."""
    path, colon, name = model.rpartition(":")
    if not colon or not name:
        raise invalid("MODEL", "unknown", model, f"{', '.join(MODELS)} or FILE.py:NAME")
    file = Path(path)
    if not file.is_file():
        raise invalid("MODEL", "no such file", path, "a Python file with a program")
    spec = importlib.util.spec_from_file_location(file.stem, file.resolve())
    if spec is None or spec.loader is None:
        raise invalid("MODEL", "not a Python file", path, "FILE.py:NAME")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except GNNBackendError:
        raise
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise invalid("MODEL", f"{path} cannot be imported", got, "a file that runs") from error
    finally:
        sys.path.pop(0)
    return module


def _program(module: ModuleType, model: str) -> RelationalProgram:
    name = model.rpartition(":")[2]
    found = getattr(module, name, None)
    if isinstance(found, RelationalProgram):
        return found
    there = [k for k, v in vars(module).items() if isinstance(v, RelationalProgram)]
    problem = f"{name} is no program" if found is not None else f"no {name} in the file"
    raise invalid("MODEL", problem, model, f"one of {', '.join(there) or 'its programs'}",
                  "Decorate the function with gnn_backend.program.program.")  # fmt: skip


def _example(
    module: ModuleType, model: str, relations: Relations
) -> tuple[dict[str, tuple[int, ...]], dict[str, Hashable]]:
    """Shapes and constants, of the arguments that the file's example has."""
    name = model.rpartition(":")[2]
    example = getattr(module, f"{_EXAMPLE}_{name}", getattr(module, _EXAMPLE, None))
    fix = (
        f"Write def {_EXAMPLE}(relations) beside the program, or {_EXAMPLE}_{name}, that returns "
        "the arguments of a call by name: tensors and constants."
    )
    if not callable(example):
        raise invalid("MODEL", f"no {_EXAMPLE} in the file", model, "arguments to trace with", fix)
    arguments: Any = example(relations)
    if not isinstance(arguments, Mapping):
        raise invalid("MODEL", f"{_EXAMPLE} gives no arguments", type(arguments).__name__,
                      "a dictionary", fix)  # fmt: skip
    shapes = {k: tuple(v.shape) for k, v in arguments.items() if isinstance(v, Tensor)}
    return shapes, {k: v for k, v in arguments.items() if k not in shapes}
