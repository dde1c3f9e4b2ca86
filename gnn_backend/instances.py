"""Accelerating the layers of one model, and finding which layers of a model are known."""

from __future__ import annotations

import copyreg
import functools
import inspect
import sys
import warnings
from collections.abc import Iterator
from typing import Any, TypeVar

from torch import nn

from gnn_backend.dispatch import Dispatcher
from gnn_backend.errors import invalid
from gnn_backend.patching import MODES, Patch, registry, stock

BASE = "__gnn_backend_base__"  # the class that an accelerated instance had before
Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model, *, mode: str = "auto", undo: bool = False) -> Model:
    """Accelerate the supported layers of one model, whether or not ``enable()`` was called.

    Inside a ``disabled()`` block they run the stock code like everything else; ``disable()``
    undoes ``enable()`` alone and leaves them accelerated, as do the choices of layers in
    ``enable()`` and ``enabled()``. Where a mode other than ``auto`` is enabled, it takes the place
    of `mode`.

    Each such layer becomes an instance of a subclass of its class that differs in ``forward``
    alone: ``isinstance``, the class's name, ``state_dict``, hooks, ``deepcopy`` and pickling work
    as before, and copies stay accelerated. Reading such a pickle needs this package; undo before
    pickling to avoid that, or save the ``state_dict``.

    Parameters
    ----------
    model : torch.nn.Module
        The model, or one layer; it is changed in place.
    mode : {"auto", "strict", "verify"}
        As in :func:`gnn_backend.enable`.
    undo : bool
        Give all layers of `model` their own classes back instead.

    Returns
    -------
    torch.nn.Module
        `model` itself.

    Raises
    ------
    InvalidArgument
        If `model` is no module or `mode` is unknown.

    Warns
    -----
    UserWarning
        If no layer of the model is known.
    """
    if not isinstance(model, nn.Module):
        raise invalid("model", "not a module", type(model).__name__, "a torch.nn.Module")
    if mode not in MODES:
        raise invalid("mode", "unknown mode", repr(mode), f"one of {', '.join(MODES)}")
    found = False
    for layer in model.modules():
        base: Any = vars(type(layer)).get(BASE, type(layer))
        layer.__class__ = base
        patch = None if undo else _patch_for(layer)
        if patch is not None:
            layer.__class__ = accelerated_class(base, patch.symbol, mode)
            found = True
    if not undo and not found:
        known = ", ".join(sorted({p.symbol for p in layer_patches()}))
        warnings.warn(f"no layer of {type(model).__name__} has a fused path; those known are "
                      f"{known}. gnn_backend.explain(model) says why.", stacklevel=2)  # fmt: skip
    return model


@functools.cache
def accelerated_class(base: type, symbol: str, mode: str) -> type:
    """Return the subclass of `base` whose patched method is always dispatched."""
    patches = (*layer_patches(), *generated_patches())
    patch = next(p for p in patches if p.symbol == symbol)
    name = patch.attribute.rpartition(".")[2]
    assert isinstance(patch.replacement, Dispatcher)
    patch.replacement.resolve()
    namespace: dict[str, Any] = {
        name: patch.replacement(getattr(base, name), mode),
        BASE: base,
        "__reduce_ex__": functools.partialmethod(_reduce, symbol=symbol, mode=mode),
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
    }
    namespace |= dict.fromkeys(patch.generated, namespace[name])
    return type(base)(base.__name__, (base,), namespace)


def _reduce(layer: Any, protocol: Any, *, symbol: str, mode: str) -> Any:
    """Pickle by the stock class, which can be imported, and the mode."""
    base = vars(type(layer))[BASE]
    function, args, *rest = super(type(layer), layer).__reduce_ex__(protocol)
    if function is copyreg.__newobj__:  # type: ignore[attr-defined]
        return (_rebuild, (base, symbol, mode), *rest)
    return (function, args, *rest)


def _rebuild(base: Any, symbol: str, mode: str) -> Any:
    cls: Any = accelerated_class(base, symbol, mode)
    return cls.__new__(cls)


def layer_patches() -> Iterator[Patch]:
    """Patches of methods of layer classes, as opposed to those of functions."""
    for patch in registry.known():
        if patch.generated or "." not in patch.attribute:
            continue
        if isinstance(patch.replacement, Dispatcher):
            yield patch


def generated_patches() -> Iterator[Patch]:
    """Patches of methods that a host writes anew for each class."""
    return (patch for patch in registry.known() if patch.generated)


def patch_of(layer: nn.Module) -> Patch | None:
    """Return the patch of the closest class of `layer`'s ancestry that has one."""
    return _closest(layer, layer_patches())


def _closest(layer: nn.Module, patches: Iterator[Patch]) -> Patch | None:
    owners = {id(owner): p for p in patches if (owner := owner_of(p)) is not None}
    return next((owners[id(c)] for c in type(layer).__mro__ if id(c) in owners), None)


def _patch_for(layer: nn.Module) -> Patch | None:
    """The patch that accelerates a layer: of its own, or of what it is made from."""
    patch = patch_of(layer)
    if patch is not None and not overrides(layer, patch):
        return patch
    patch = _closest(layer, generated_patches())
    if patch is None:
        return None
    assert isinstance(patch.replacement, Dispatcher)
    patch.replacement.resolve()
    static = patch.replacement.static
    return patch if callable(static) and static(layer) is None else None


def owner_of(patch: Patch) -> type | None:
    """Return the host class that `patch` changes, or ``None`` where it is not imported."""
    owner: Any = sys.modules.get(patch.module)
    for part in patch.attribute.split(".")[:-1]:
        owner = getattr(owner, part, None)
    return owner


def overrides(layer: nn.Module, patch: Patch) -> bool:
    """Whether `layer` has a method of its own in place of the patched one."""
    name = patch.attribute.rpartition(".")[2]
    cls = vars(type(layer)).get(BASE, type(layer))
    mine, theirs = (stock(inspect.getattr_static(c, name)) for c in (cls, owner_of(patch)))
    return name in vars(layer) or mine is not theirs
