"""Operators of our own: torch.compile calls them as they are, and does not look inside.

Not by `torch.library.custom_op`, whose wrapping costs tens of microseconds a call, in every layer of every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_library: Any = torch.library.Library("inferdoc", "FRAGMENT")  # type: ignore[no-untyped-call]


def define(schema: str, function: Callable[..., Tensor], shape: Callable[..., Tensor]) -> None:
    """Make ``torch.ops.inferdoc.<name>``.

    Args:
        schema: ``name(Tensor argument, ...) -> Tensor``.
        shape: the result without its contents, for the same arguments.
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"inferdoc::{name}", shape, lib=_library)
