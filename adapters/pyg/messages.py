"""Recognising a ``message`` that is the source's features, or these times a weight of the edge.

The function's source is read, never run: a message of another form, or one whose source cannot be
found, is nobody's to fuse.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from typing import Any, NamedTuple

_FLATTEN = ("view", "reshape")
_STOCK = ("torch_geometric.nn.conv.message_passing", "MessagePassing.message")


class Form(NamedTuple):
    """What a message is made of.

    Attributes
    ----------
    x : str
        The argument of ``propagate`` that holds the features.
    weight : str or None
        That of the weights, if there are any.
    column : bool
        Whether the weights are made a column [E, 1] before they multiply; otherwise they multiply
        as they are.
    optional : bool
        Whether without weights the message is the features alone.
    """

    x: str
    weight: str | None = None
    column: bool = False
    optional: bool = False


@functools.lru_cache(maxsize=256)
def form_of(message: Any) -> Form | None:
    """The form of a ``message`` function of a class, or None if it is another.

    Recognised are bodies that return ``x_j``; ``x_j * w`` or ``w * x_j``, where ``w`` is an
    argument, or ``w.view(-1, 1)``, ``w.reshape(-1, 1)``, ``w.unsqueeze(-1)``, ``w.unsqueeze(1)``
    or ``w[:, None]``; and either of the two by ``w is None``, in one expression or with an ``if``.
    """
    if (message.__module__, message.__qualname__) == _STOCK:
        return Form("x")
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(message)))
    except (OSError, TypeError, SyntaxError):
        return None
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        return None
    function = tree.body[0]
    arguments = function.args
    if function.decorator_list or arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        return None
    names = {a.arg for a in (*arguments.posonlyargs, *arguments.args)[1:]}
    body = function.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]  # the docstring
    result = _returned(body)
    return None if result is None else _form(result, names)


def _returned(body: list[ast.stmt]) -> ast.expr | None:
    """The one expression that a body returns; an ``if`` is made a conditional expression."""
    if len(body) == 1 and isinstance(body[0], ast.Return):
        return body[0].value
    if not body or not isinstance(body[0], ast.If):
        return None
    test, first, second = body[0].test, _returned(body[0].body), body[0].orelse or body[1:]
    if body[0].orelse and len(body) > 1:
        return None
    otherwise = _returned(second)
    if first is None or otherwise is None:
        return None
    return ast.IfExp(test=test, body=first, orelse=otherwise)


def _form(result: ast.expr, names: set[str]) -> Form | None:
    if isinstance(result, ast.IfExp):
        return _conditional(result, names)
    source = _source(result, names)
    if source is not None:
        return Form(source)
    if not isinstance(result, ast.BinOp) or not isinstance(result.op, ast.Mult):
        return None
    for x, weight in ((result.left, result.right), (result.right, result.left)):
        source, found = _source(x, names), _weight(weight, names)
        if source is not None and found is not None:
            return Form(source, *found)
    return None


def _conditional(result: ast.IfExp, names: set[str]) -> Form | None:
    """``x_j if w is None else x_j * w``, or the same by ``w is not None``."""
    test = result.test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    left, operator, right = test.left, test.ops[0], test.comparators[0]
    if not isinstance(right, ast.Constant) or right.value is not None:
        return None
    if isinstance(operator, ast.Is):
        without, given = result.body, result.orelse
    elif isinstance(operator, ast.IsNot):
        without, given = result.orelse, result.body
    else:
        return None
    plain, form = _form(without, names), _form(given, names)
    if plain is None or form is None or plain.weight is not None or plain.x != form.x:
        return None
    if not isinstance(left, ast.Name) or left.id != form.weight:
        return None
    return form._replace(optional=True)


def _source(node: ast.expr, names: set[str]) -> str | None:
    """``x`` of an argument ``x_j``."""
    if isinstance(node, ast.Name) and node.id in names and node.id.endswith("_j"):
        return node.id[:-2]
    return None


def _weight(node: ast.expr, names: set[str]) -> tuple[str, bool] | None:
    """The argument that weighs, and whether it is made a column."""
    if isinstance(node, ast.Name):
        is_weight = node.id in names and node.id[-2:] not in ("_i", "_j")
        return (node.id, False) if is_weight else None
    if isinstance(node, ast.Call) and not node.keywords:
        function, values = node.func, [_number(a) for a in node.args]
        if not isinstance(function, ast.Attribute):
            return None
        flattens = function.attr in _FLATTEN and values == [-1, 1]
        unsqueezes = function.attr == "unsqueeze" and values in ([-1], [1])
        inner = _weight(function.value, names) if flattens or unsqueezes else None
        return (inner[0], True) if inner is not None and not inner[1] else None
    if isinstance(node, ast.Subscript):
        inner = _weight(node.value, names)
        new_axis = ast.dump(node.slice) == ast.dump(ast.parse("x[:, None]").body[0].value.slice)  # type: ignore[attr-defined]
        return (inner[0], True) if new_axis and inner is not None and not inner[1] else None
    return None


def _number(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
