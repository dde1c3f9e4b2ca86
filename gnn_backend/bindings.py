"""One replaced attribute: putting the replacement in, and the very same original back."""

from __future__ import annotations

import dataclasses
import logging
import sys
import types
from typing import Any

log = logging.getLogger(__name__)

STOCK = "__gnn_backend_stock__"  # attribute of a replacement that holds the original function


@dataclasses.dataclass
class Binding:
    """An applied replacement and everything needed to take it back."""

    owner: Any
    name: str
    original: Any  # raw, as found in the owner's __dict__ or, if inherited, in a base's
    inherited: bool
    replacement: Any  # raw, as put into the owner's __dict__

    def undo(self) -> None:
        """Take the replacement back, unless other code has replaced it since."""
        if vars(self.owner).get(self.name) is not self.replacement:
            log.warning("%s.%s was replaced again by other code; it is left so",
                        self.owner.__name__, self.name)  # fmt: skip
        elif self.inherited:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)


def stock(function: Any) -> Any:
    """Return the host's own function behind a replacement (or `function` itself)."""
    return getattr(function, STOCK, function)


def rename_everywhere(renamed: dict[int, tuple[Any, Any]]) -> None:
    """Rebind module globals that hold one of the old objects, ``from x import f`` being a copy.

    Modules of this package are left alone: they hold originals on purpose.
    """
    if not renamed:
        return
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "gnn_backend" or not isinstance(module, types.ModuleType):
            continue
        # Tens of thousands of names, of which hardly any is meant: a loop of Python's takes 20 ms.
        if renamed.keys().isdisjoint(map(id, list(vars(module).values()))):
            continue
        for key, value in list(vars(module).items()):
            old_new = renamed.get(id(value))
            if old_new is not None and value is old_new[0]:
                vars(module)[key] = old_new[1]
