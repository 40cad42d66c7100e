"""torch's graph capture as a compiler of fixed shapes: whole graphs only, one shape per program, none after warm-up.

Programs are kept for the life of the process, as vendors keep them in a directory: a second session of the same shapes compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters

from tgi_backend_static_cpu.police import Police, suspended
from tgi_core.backend import CompileFailed

Compiled = Callable[..., Any]

_programs: dict[tuple[str, ...], Compiled] = {}


def compiled_graphs() -> int:
    """Graphs that this process has compiled, by torch's own counter."""
    return int(counters["stats"]["unique_graphs"])


class GraphMaker:
    """The compiler of one session. `key` is what its programs depend on beside their names."""

    def __init__(self, key: Sequence[str], policed: bool = True) -> None:
        self._key, self._policed, self._sealed = tuple(key), policed, False
        self._before = compiled_graphs()

    def compile(self, run: Compiled, name: str) -> Compiled:
        """See `Maker.compile`."""
        key = (*self._key, name)
        if key not in _programs:
            _programs[key] = torch.compile(run, backend="eager", fullgraph=True, dynamic=False)
        program = _programs[key]
        fresh = True

        def call(*arguments: Any) -> Any:
            nonlocal fresh
            with suspended():
                if fresh and self._policed:
                    with Police(arguments):
                        run(*arguments)
                fresh = False
                if not self._sealed:
                    return program(*arguments)
                with torch.compiler.set_stance("fail_on_recompile"):
                    return _served(program, name, arguments)

        return call

    def seal(self) -> None:
        """See `Maker.seal`."""
        self._sealed = True

    def compiles(self) -> int:
        """See `Maker.compiles`."""
        return compiled_graphs() - self._before

    def release(self) -> None:
        """The programs stay: other sessions may use them."""


def _served(program: Compiled, name: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return program(*arguments)
    except RuntimeError as error:
        if "recompil" in str(error):
            raise CompileFailed(
                f"{name}: this program would have to be compiled again: {' '.join(str(error).split())[:300]}"
            ) from error
        raise
