"""A compiler of fixed shapes, emulated: torch captures whole graphs of one shape each, and they run as they are.

Where vendors' compilers keep programs in a directory by the hash of a graph, this one keeps the graph's text: a later process finds it
and counts no compile. Captured graphs are kept for the life of the process, so that a second session of the same shapes does not capture
them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tgi_backend_static_cpu.program_guard import ProgramGuard, suspended
from tgi_core.backend import CompileFailed
from tgi_core.engine.compiling.base import Compiled
from tgi_core.engine.compiling.torch_compiler import with_code


class Compiler:
    """The process's compiler; a torch.compile backend."""

    def __init__(self) -> None:
        self.count = 0
        """Programs compiled so far, not counting those that were found in a directory."""
        self.captured: dict[tuple[str, ...], Compiled] = {}
        self.directory: Path | None = None

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        """Compile a graph, or find it among those compiled by an earlier process."""
        kinds = [(tuple(each.shape), str(each.dtype)) if isinstance(each, torch.Tensor) else str(each) for each in inputs]
        text = f"{torch.__version__}\n{kinds}\n{graph.code}"
        path = self.directory / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.txt" if self.directory else None
        if path is None or not path.exists():
            self.count += 1
            if path is not None:
                path.write_text(text, encoding="utf-8")
        return graph.forward


COMPILER = Compiler()


class GraphCompiler:
    """The compiler of one session. `key` is what its programs depend on besides their names."""

    by_layer = False

    def __init__(self, key: Sequence[str], directory: Path | None = None, guarded: bool = True) -> None:
        self._key, self._directory, self._guarded, self._sealed = (*key, str(directory)), directory, guarded, False
        self._before = COMPILER.count

    def compile(self, run: Compiled, name: str) -> Compiled:
        """See `ProgramCompiler.compile`."""
        key = (*self._key, name)
        if key not in COMPILER.captured:
            COMPILER.captured[key] = torch.compile(with_code(run, name), backend=COMPILER, fullgraph=True, dynamic=False)
        program, fresh = COMPILER.captured[key], self._guarded

        def call(*arguments: Any) -> Any:
            nonlocal fresh
            with suspended():
                if fresh:
                    fresh = False
                    with ProgramGuard(arguments):
                        run(*arguments)
                return self._served(program, name, arguments) if self._sealed else self._compiled(program, arguments)

        return call

    def seal(self) -> None:
        """See `ProgramCompiler.seal`."""
        self._sealed = True

    def compiles(self) -> int:
        """See `ProgramCompiler.compiles`."""
        return COMPILER.count - self._before

    def release(self) -> None:
        """The graphs are kept: other sessions may use them."""

    def _compiled(self, program: Compiled, arguments: tuple[Any, ...]) -> Any:
        COMPILER.directory = self._directory
        return program(*arguments)

    def _served(self, program: Compiled, name: str, arguments: tuple[Any, ...]) -> Any:
        try:
            with torch.compiler.set_stance("fail_on_recompile"):
                return program(*arguments)
        except RuntimeError as error:
            if "recompil" in str(error):
                reason = " ".join(str(error).split())[:300]
                raise CompileFailed(f"{name}: this program would have to be compiled again: {reason}") from error
            raise
