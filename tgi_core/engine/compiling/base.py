"""The interface of a device's compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Compiled = Callable[..., Any]
"""A function of tensors, compiled or to be compiled."""


class ProgramCompiler(Protocol):
    """A device's compiler."""

    by_layer: bool
    """Whether it compiles single layers, not whole steps."""

    def compile(self, run: Compiled, name: str) -> Compiled:
        """A function of tensors, compiled at its first call, for the shapes of that call only.

        It reads no value on the host and mutates no argument but the caches and the newest tokens. `name` is unique in a session.
        """

    def seal(self) -> None:
        """Warm-up is done: from now on a call that would compile raises."""

    def compiles(self) -> int:
        """Programs compiled since this object was created, by the compiler's own counter."""

    def release(self) -> None:
        """Free the programs. Idempotent."""
