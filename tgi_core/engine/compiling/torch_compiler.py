"""A device's compiler behind `torch.compile`."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tgi_core.backend import BackendError, CompileFailed
from tgi_core.engine.compiling.base import Compiled
from tgi_core.engine.failures import TORCH_ERRORS

_COMPILED: dict[tuple[str, ...], Compiled] = {}
"""Programs compiled by this process, by everything that they depend on: a session that is opened again finds them."""


class TorchProgramCompiler:
    """See `ProgramCompiler`. `backend` is torch.compile's name, `fields` are what programs depend on besides their names, `count` is the
    compiler's own counter, and `translate` gives the contract's error for a device's own."""

    def __init__(
        self,
        backend: str,
        fields: Mapping[str, str],
        count: Callable[[], int],
        translate: Callable[[Exception], BackendError | None],
        by_layer: bool = False,
    ) -> None:
        self.by_layer = by_layer
        self._backend, self._count, self._translate, self._sealed = backend, count, translate, False
        self._key, self._before = (backend, *(f"{name}={value}" for name, value in fields.items())), count()

    def compile(self, run: Compiled, name: str) -> Compiled:
        """See `ProgramCompiler.compile`."""
        key = (*self._key, name)
        program = _COMPILED.get(key)
        if program is None:
            run = with_code(run, name)
            program = _COMPILED[key] = torch.compile(run, backend=self._backend, fullgraph=True, dynamic=False)

        def call(*arguments: Any) -> Any:
            try:
                with torch.compiler.set_stance("fail_on_recompile" if self._sealed else "default"):
                    return program(*arguments)
            except TORCH_ERRORS as error:
                raise self._failure(error, name) from error

        return call

    def seal(self) -> None:
        """See `ProgramCompiler.seal`."""
        self._sealed = True

    def compiles(self) -> int:
        """See `ProgramCompiler.compiles`."""
        return self._count() - self._before

    def release(self) -> None:
        """Programs stay for the process's next session."""

    def _failure(self, error: Exception, name: str) -> Exception:
        found = self._translate(error)
        if found is None and (not self._sealed or "recompil" in str(error)):
            found = CompileFailed(f"{name}: cannot be compiled: {' '.join(str(error).split())[:300]}")
        return found or error


def with_code(run: Compiled, name: str) -> Compiled:
    """The same function with its own code object: torch's compiler tries all programs of a code object at each call."""
    name = re.sub(r"\W+", "_", f"program {name}")
    code = run.__code__.replace(co_name=name, co_qualname=name)
    return types.FunctionType(code, run.__globals__, name, run.__defaults__, run.__closure__)
