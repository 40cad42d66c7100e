"""Last bits that depend on the rest of the batch, and dtypes other than float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import Row, Rows
from tgi_core.backend.batch_tracker import LaunchedStep, RowInput


class Shaken(Sound):
    """Logprobs differ in their last bits where `shakes` says so."""

    by = 1e-9
    """The difference, below every tolerance."""

    def shakes(self, launch: LaunchedStep, place: int, row_input: RowInput) -> bool:
        """Return whether the row at a place of a step is affected."""
        return True

    def _compute(self, launch: LaunchedStep) -> None:
        super()._compute(launch)
        outcome = self._done[launch.step.id]
        if isinstance(outcome, Rows):
            row_inputs = {row_input.row.request.id: (place, row_input) for place, row_input in enumerate(launch.row_inputs)}
            rows = tuple(self._shaken(row) if self.shakes(launch, *row_inputs[row.request_id]) else row for row in outcome.rows)
            self._done[launch.step.id] = replace(outcome, rows=rows)

    def _shaken(self, row: Row) -> Row:
        tops = tuple(tuple(replace(top, logprob=top.logprob - self.by) for top in tops) for tops in row.top)
        return replace(row, logprobs=tuple(value - self.by for value in row.logprobs), top=tops)


@mutant("bits-by-rows", "invariant.mates", "invariant.merge")
class BitsByRows(Shaken):
    """A matrix product is split by the number of rows: batch invariance is declared, but the last bits depend on how many run
    (vLLM and SGLang both needed special kernels)."""

    def shakes(self, launch: LaunchedStep, place: int, row_input: RowInput) -> bool:
        """Steps of more than one row."""
        return len(launch.row_inputs) > 1


@mutant("bits-by-place", "invariant.mates", "invariant.merge")
class BitsByPlace(Shaken):
    """The last rows of a batch run in a kernel's remainder loop, which adds in another order."""

    def shakes(self, launch: LaunchedStep, place: int, row_input: RowInput) -> bool:
        """Rows after the first two."""
        return place >= 2


@mutant("bits-by-chunk", "invariant.chunks")
class BitsByChunk(Shaken):
    """Attention splits its keys by the length of the query: a prompt in chunks has other last bits than a whole one."""

    def shakes(self, launch: LaunchedStep, place: int, row_input: RowInput) -> bool:
        """Rows whose prompt began in part."""
        return row_input.row.request.take < len(row_input.row.request.tokens)


@mutant("bits-in-halves", "invariant.mates")
class BitsInHalves(BitsByRows):
    """Invariant in float32 only, but declared in every dtype: the half-precision kernels come from elsewhere."""

    def shakes(self, launch: LaunchedStep, place: int, row_input: RowInput) -> bool:
        """Every row in other dtypes."""
        return self.options.dtype != "float32" and super().shakes(launch, place, row_input)


@mutant("halves-drift", "parity.other-dtypes")
class HalvesDrift(Shaken):
    """Logits are accumulated in half precision, which causes errors far beyond rounding."""

    by = 1.0

    def shakes(self, launch: LaunchedStep, place: int, row_input: RowInput) -> bool:
        """Every row in other dtypes."""
        return self.options.dtype != "float32"


@mutant("halves-untyped", "parity.other-dtypes", "invariant.mates")
class HalvesUntyped(Sound):
    """A dtype that the device does not support raises the framework's own exception, in the first step."""

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        if self.options.dtype == "float16":
            raise RuntimeError('"addmm_impl" not implemented for Half')
        return super()._sample(row_input, state)
