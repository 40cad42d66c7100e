"""The interface between the static engine and a device package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tgi_core.engine.compiling.base import ProgramCompiler
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.static.buckets import BucketRules


class StaticKit(DeviceKit, Protocol):
    """A device that compiles one program per shape. Its queue is never None, and its `table_runner` makes a `StaticRunner`."""

    rules: BucketRules
    program_bytes: int
    """Maximum device memory of a program."""

    def compiler(self) -> Mapping[str, str]:
        """What a compiled program depends on besides model and shapes, by name: the compiler's version, the chip, …"""

    def program_compiler(self, fields: Mapping[str, str], directory: Path | None) -> ProgramCompiler:
        """A compiler of one session's programs, which depend on `fields`, and are kept in `directory` if there is one."""
