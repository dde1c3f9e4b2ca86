"""Transformations of programs, which follow plain torch operators only."""

from __future__ import annotations

import torch


def transformed_reason() -> str | None:
    """Reason code inside transformations that follow plain torch operators only."""
    if torch.compiler.is_compiling():  # an exported program must run without this package
        return "scripted" if getattr(torch.compiler, "is_exporting", bool)() else None
    if torch._C._get_tracing_state() is not None:
        return "scripted"
    forward_mode = torch.autograd.forward_ad._current_level >= 0
    if forward_mode or torch._C._functorch.peek_interpreter_stack() is not None:
        return "transforms"
    return None
