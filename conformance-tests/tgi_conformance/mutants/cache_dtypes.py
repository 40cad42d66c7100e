"""Caches of eight bits that are declared wrongly, read wrongly or rounded together, and a correct one."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import Capabilities, Row, hookimpl
from tgi_core.backend.batch_tracker import LaunchedStep, RowInput, RowState


class _Narrow(Sound):
    """Honours the requested dtype."""

    @property
    def narrow(self) -> bool:
        """Whether a cache of eight bits was asked for."""
        return self.options.cache_dtype != "auto"

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare it."""
        return replace(super().capabilities(), cache_dtype=self.options.cache_dtype)


@mutant("narrow-cache")
class NarrowCache(_Narrow):
    """A cache of eight bits whose rounding changes nothing."""


@mutant("cache-dtype-of-its-own", "parity.cache-dtype")
class CacheDtypeOfItsOwn(_Narrow):
    """Asked for fp8, it keeps int8, the only kind that it has, and declares that."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare int8."""
        return replace(super().capabilities(), cache_dtype="int8" if self.narrow else "auto")


@mutant("cache-scales-lost", "parity.cache-dtype")
class CacheScalesLost(_Narrow):
    """Codes are read without their scales: rows alone and together agree, on tokens that the model would not make."""

    def _write(self, row: RowState, position: int) -> int:
        written = super()._write(row, position)
        return written ^ 1 if self.narrow else written


@mutant("cache-scales-shared", "parity.cache-dtype")
class CacheScalesShared(_Narrow):
    """A scale per step instead of per row: what a row keeps is rounded by what its mates keep."""

    _together = 0

    def _compute(self, launch: LaunchedStep) -> None:
        self._together = len(launch.row_inputs)
        super()._compute(launch)

    def _run(self, row_input: RowInput) -> Row:
        made = super()._run(row_input)
        if not self.narrow or self._together < 2 or not made.tokens:
            return made
        return replace(made, tokens=((made.tokens[0] + 1) % self._vocab_size,))
