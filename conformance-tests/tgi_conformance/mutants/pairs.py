"""Features that work separately but not together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tgi_conformance.mutants.base import Sound, mutant
from tgi_conformance.mutants.masks import Between, Source
from tgi_conformance.mutants.sampling import Altered
from tgi_core.backend import EMPTY, Grant, Handle, MaskRow, Request, Row, Step, hookimpl
from tgi_core.backend.batch_tracker import LaunchedStep, RowInput


class Forgetful(Sound):
    """Penalties ignore the first `forgotten` tokens of a row."""

    def forgotten(self, row_input: RowInput) -> int:
        """Return how many of the row's tokens are ignored."""
        return 0

    @contextmanager
    def _without(self, row_input: RowInput) -> Iterator[None]:
        row, count = row_input.row, min(self.forgotten(row_input), row_input.row.request.prompt_len)
        tokens = row.tokens
        other = next(token for token in range(self._vocab_size) if token not in tokens[count:])
        row.tokens = [other] * count + tokens[count:]
        try:
            yield
        finally:
            row.tokens = tokens + row.tokens[len(tokens) :]

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        with self._without(row_input):
            return super()._sample(row_input, state)


@mutant("penalties-forget-prefix", "pairs.penalties", "pairs.prefix")
class PenaltiesForgetPrefix(Forgetful):
    """Penalties are kept as counts that each step adds to, and tokens of the prefix are never counted."""

    def forgotten(self, row_input: RowInput) -> int:
        """The cached tokens."""
        return row_input.row.request.cached


@mutant("penalties-of-the-last-chunk", "pairs.penalties", "pairs.chunks")
class PenaltiesOfTheLastChunk(Forgetful):
    """Each chunk of a prompt overwrites the counts instead of adding to them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._begun: dict[int, int] = {}

    def forgotten(self, row_input: RowInput) -> int:
        """All tokens before the last chunk."""
        id = row_input.row.request.id
        if row_input.take > 1 or row_input.start < len(row_input.row.request.tokens):
            self._begun[id] = row_input.start
        return self._begun.get(id, 0)


@mutant("mask-off-when-joining", "pairs.masks", "pairs.mixing")
class MaskOffWhenJoining(Sound):
    """A mixed step uses decode's sampler, whose masks were made before the new rows joined."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Note which requests join."""
        step = super().prefill(batch, cached, grants)
        self._joining = {} if cached == EMPTY else {request.id: step.id for request in batch}
        return step

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        row, kept = row_input.row, row_input.row.request
        joins = len(row.tokens) == len(kept.tokens) and kept.id in self._joining
        row.request = replace(kept, masked=kept.masked and not joins)
        try:
            return super()._sample(row_input, state)
        finally:
            row.request = kept


@mutant("adapter-lost-ahead", "pairs.adapters", "pairs.run-ahead")
class AdapterLostAhead(Sound):
    """The adapters of a step lie in one buffer: a step launched ahead overwrites those of the step before."""

    def _compute(self, launch: LaunchedStep) -> None:
        self._overwritten = bool(self._launched)
        super()._compute(launch)

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        lost = self._overwritten and row_input.row.request.adapter is not None
        return super()._sample(row_input, state ^ lost)


class _Brought(Source):
    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.brought: dict[int, tuple[int, ...]] = {}

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Pass on the tokens that the request brought as well."""
        return super().fill(tuple(replace(row, tokens=(*self.brought.pop(row.request_id, ()), *row.tokens)) for row in rows))


@mutant("tells-what-was-brought", "pairs.masks", "pairs.continue")
class TellsWhatWasBrought(Between):
    """A continued request's tokens are passed to its grammar, which already knows them and advances twice."""

    source = _Brought

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Note the tokens after the prompt."""
        if isinstance(self._masks, _Brought):
            self._masks.brought |= {request.id: request.tokens[request.prompt_len :] for request in batch}
        return super().prefill(batch, cached, grants)


@mutant("logprobs-of-the-plain-model", "pairs.logprobs", "pairs.adapters")
class LogprobsOfThePlainModel(Sound):
    """Logprobs behind a prefix are computed where adapters are not loaded."""

    def _run(self, row_input: RowInput) -> Row:
        row = super()._run(row_input)
        request = row_input.row.request
        if request.adapter is None or not request.cached or not row.logprobs:
            return row
        return replace(row, logprobs=(row.logprobs[0] - 0.1,))


@mutant("seed-lost-behind-prefix", "pairs.seeds", "pairs.prefix")
class SeedLostBehindPrefix(Altered):
    """Rows that start behind a prefix take another code path, in which the seed is not copied."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Return the request with seed 0."""
        return self._how(request, seed=0) if request.cached else request
