"""The Gaudi compiler: torch.compile's backend `hpu_backend`, one recipe for every part of every shape."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tgi_core.backend import BackendError, CompileFailed
from tgi_core.engine.failures import TORCH_ERRORS

_log = logging.getLogger("tgi_core.engine")

Compiled = Callable[..., Any]
_COMPILED: dict[tuple[str, ...], Compiled] = {}
"""What this process has compiled, by what it depends on and its name: a session that is opened again finds it."""


def counted(name: str) -> int:
    """One of the bridge's own counters since the process began: `graph_compilation`, `cpu_fallback`."""
    from habana_frameworks.torch.hpu.metrics import metric_global

    return int(dict(metric_global(name).stats()).get("TotalNumber", 0))


class HabanaMaker:
    """The compiler of one session, whose programs depend on `fields` beside their names."""

    def __init__(self, fields: Mapping[str, str], by_layer: bool, translate: Callable[[Exception], BackendError | None]) -> None:
        self.by_layer = by_layer
        self._key = tuple(f"{name}={value}" for name, value in fields.items())
        self._translate, self._sealed = translate, False
        self._before, self._fallbacks = counted("graph_compilation"), counted("cpu_fallback")

    def compile(self, run: Compiled, name: str) -> Compiled:
        """See `Maker.compile`."""
        key = (*self._key, name)
        if key not in _COMPILED:
            _COMPILED[key] = torch.compile(run, backend="hpu_backend", fullgraph=True, dynamic=False)
        program = _COMPILED[key]

        def call(*arguments: Any) -> Any:
            try:
                with torch.compiler.set_stance("fail_on_recompile" if self._sealed else "default"):
                    return program(*arguments)
            except TORCH_ERRORS as error:
                raise self._failure(error, name) from error

        return call

    def seal(self) -> None:
        """See `Maker.seal`."""
        self._sealed = True
        if fallbacks := counted("cpu_fallback") - self._fallbacks:
            _log.warning("%d operators of the programs ran on the host: the device does not have them, and every step waits", fallbacks)

    def compiles(self) -> int:
        """Recipes, by the bridge's counter."""
        return counted("graph_compilation") - self._before

    def release(self) -> None:
        """They stay for the process's next session."""

    def _failure(self, error: Exception, name: str) -> Exception:
        found = self._translate(error)
        if found is not None:
            return found
        if self._sealed and "recompil" not in str(error):
            return error
        return CompileFailed(f"{name}: cannot be compiled: {' '.join(str(error).split())[:300]}")
