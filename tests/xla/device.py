"""The CPU through torch_xla: XLA compiles every program, and counts them itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch_xla
import torch_xla.debug.metrics as metrics
from tgi_backend_static_cpu.kit import StaticCpuKit

from tgi_core.engine.compiling.base import Compiled
from tgi_core.engine.plain_queue import PlainQueue
from tgi_core.engine.static.buckets import BucketRules


def compiles() -> int:
    """Programs that XLA has compiled in this process, whether the engine knows of them or not."""
    return metrics.counter_value("UncachedCompile") or 0


def fallbacks() -> dict[str, int]:
    """Operators that XLA left to the host, and how often."""
    return {name: metrics.counter_value(name) for name in metrics.counter_names() if name.startswith("aten::")}


class XlaEvent:
    """Waiting is for everything; a copy to the host waits for what it copies."""

    def synchronize(self) -> None:
        """Until the device is idle."""
        torch_xla.sync(wait=True)


class XlaMaker:
    """Records a function's operators at every call; XLA compiles them where it has not seen the same ones before."""

    by_layer = False

    def __init__(self) -> None:
        self._before = compiles()

    def compile(self, run: Compiled, name: str) -> Compiled:
        """See `ProgramCompiler.compile`."""

        def call(*arguments: Any) -> Any:
            found = run(*arguments)
            torch_xla.sync()
            return found

        return call

    def seal(self) -> None:
        """XLA always compiles; the test counts."""

    def compiles(self) -> int:
        """By XLA's counter."""
        return compiles() - self._before

    def release(self) -> None:
        """XLA keeps them."""


class XlaKit(StaticCpuKit):
    """static-cpu, with XLA in place of its compiler."""

    def __init__(self, rules: BucketRules) -> None:
        super().__init__(rules)
        self.device = torch_xla.device()

    def queue(self) -> Any:
        """Work is enqueued when it is given. XLA has no errors of its own here."""
        return PlainQueue(XlaEvent, lambda error: None, in_flight=2)

    def compiler(self) -> Mapping[str, str]:
        """Its version."""
        return {"torch_xla": torch_xla.__version__}

    def program_compiler(self, fields: Mapping[str, str], directory: Path | None) -> Any:
        """XLA."""
        return XlaMaker()
