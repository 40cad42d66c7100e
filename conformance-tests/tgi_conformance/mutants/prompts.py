"""Prompts in chunks, prefixes, and stopping."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tgi_conformance.mutants.base import Mutant, Sound, add, mutant, opening
from tgi_core.backend import EMPTY, Grant, Handle, OpenOptions, Request, Rows, Step, hookimpl
from tgi_core.backend.batch_tracker import RowState


@mutant("chunk-off-by-one", "chunks.tokens", "chunks.rest")
class ChunkOffByOne(Sound):
    """The first token of each later chunk runs twice, in place of the chunk's last one (a half-open range treated as closed)."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Shift the tokens of a chunk by one."""
        for grant in grants:
            row = self.row(grant.request_id)
            if row is not None and row.prompt_left and grant.take > 1:
                part = slice(row.computed + 1, row.computed + grant.take)
                row.tokens[part] = row.tokens[row.computed : row.computed + grant.take - 1]
        return super().decode(batches, grants)


@mutant("chunk-yields-early", "chunks.tokens")
class ChunkYieldsEarly(Sound):
    """Every chunk ends in a token, and those of incomplete prompts reach the client."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Return a token for each row."""
        found = super().rows(step)
        return replace(found, rows=tuple(replace(row, tokens=row.tokens or (0,)) for row in found.rows))


@mutant("chunk-runs-by-itself", "chunks.rest")
class ChunkRunsByItself(Sound):
    """A row whose prompt is incomplete takes its next token without a grant."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Take one token if the row's blocks allow it."""
        named = {grant.request_id for grant in grants}
        rows = [
            row
            for handle in batches
            for row in self.live_batches.get(handle, ())
            if row.request.id not in named and row.prompt_left
        ]
        more = tuple(Grant(row.request.id, 1) for row in rows if row.computed < len(row.tables[0]) * self._block_size)
        return super().decode(batches, (*grants, *more))


@mutant("chunk-too-long", "chunks.too-much")
class ChunkTooLong(Sound):
    """A chunk longer than the rest is silently cut."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Cut it to the rest of the prompt."""

        def cut(grant: Grant) -> Grant:
            row = self.row(grant.request_id)
            return replace(grant, take=min(grant.take, row.prompt_left)) if row is not None and row.prompt_left else grant

        return super().decode(batches, tuple(map(cut, grants)))


@mutant("incomplete-cannot-leave", "chunks.leave")
class IncompleteCannotLeave(Sound):
    """Only decoding rows can be dropped: one whose prompt is incomplete stays."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep such rows unasked."""
        stuck = [row for row in self.live_batches.get(batch, ()) if row.prompt_left and row.request.id not in keep]
        kept = super().filter(batch, keep)
        if kept != EMPTY:
            self.live_batches[kept].extend(stuck)
        return kept


@mutant("join-restarts", "mixing.tokens", "failure.join")
class JoinRestarts(Sound):
    """The rows of the joined batch run from their prompt again, into the same blocks."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Drop their last token."""
        for row in self.live_batches.get(cached, ()):
            if len(row.tokens) > len(row.request.tokens) and row.computed >= len(row.request.tokens):
                row.tokens[-1] = row.tokens[-2]
        return super().prefill(batch, cached, grants)


@mutant("join-first-sits-out", "mixing.tokens", "mixing.chunks")
class JoinFirstSitsOut(Sound):
    """In a mixed step the running rows wait, which is correct in a server that never mixes, but not under this contract."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Let them take 0 tokens."""
        rows = self.live_batches.get(cached, ()) if cached != EMPTY else ()
        given = {grant.request_id: grant for grant in grants}
        waiting = tuple(replace(given.get(row.request.id, Grant(row.request.id, 0)), take=0) for row in rows)
        known = {row.request.id for row in rows}
        return super().prefill(batch, cached, waiting + tuple(grant for grant in grants if grant.request_id not in known))


@mutant("prefix-not-read", "prefix.tokens", "prefix.chunks")
class PrefixNotRead(Sound):
    """A prefix is registered before it is computed, or its blocks are ignored, so its states are empty."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Read the prefix from fresh blocks."""
        step = super().prefill(batch, cached, grants)
        for request in batch:
            row = self.row(request.id)
            if request.cached and row is not None:
                count = request.cached // self._block_size
                row.tables[0][:count] = [self._capacity_blocks - index for index in range(count)]
        return step

    @property
    def _capacity_blocks(self) -> int:
        return len(self._slots) // self._block_size - 1


@mutant("prefix-owned", "prefix.tokens")
class PrefixOwned(Sound):
    """A shared prefix dies with the row that made it: its blocks are wiped when that row leaves."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Wipe the blocks, whichever rows read them."""
        gone = [row for row in self.live_batches.get(batch, ()) if row.request.id not in keep]
        kept = super().filter(batch, keep)
        for row in gone:
            for block in row.tables[0]:
                self._slots[block * self._block_size : (block + 1) * self._block_size] = [0] * self._block_size
        return kept


@mutant("prefix-of-everything", "prefix.range")
class PrefixOfEverything(Sound):
    """A fully cached prompt is accepted, and its last token runs again."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Take one token back."""

        def cut(request: Request) -> Request:
            most = len(request.tokens) - 1
            return replace(request, cached=most) if request.cached > most >= 0 else request

        return super().prefill(tuple(map(cut, batch)), cached, grants)


@mutant("prompts-confused", "mates.together", "parity.greedy")
class PromptsConfused(Sound):
    """Prompts of several requests overlap by one token (cu_seqlens off by one)."""

    def _write(self, table: list[int] | RowState, position: int, *rest: int) -> int:
        state: int = super()._write(table, position, *rest)  # type: ignore[arg-type]
        return state ^ (1 << 50) if position and self._several else state

    _several = False

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Affect prompts only where several start together."""
        self._several = len(batch) > 1
        return super().prefill(batch, cached, grants)


class _Stops(Sound):
    """Stops after the model's end-of-text token, although stopping is the server's job (several forks of TGI)."""

    ends: Sequence[int] = ()

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Return nothing after the end of text."""
        found = super().rows(step)
        ended = {row.request_id for row in found.rows if set(row.tokens) & set(self.ends)}
        self._over: set[int] = getattr(self, "_over", set())
        rows = tuple(replace(row, tokens=(), logprobs=(), top=()) if row.request_id in self._over else row for row in found.rows)
        self._over |= ended
        return replace(found, rows=rows)


def _stopping(options: OpenOptions) -> object:
    end = json.loads((Path(options.model) / "config.json").read_text()).get("eos_token_id", -1)
    return opening(type("Stops", (_Stops,), {"ends": (end,)}))(options)


add(Mutant("stops-at-end-of-text", _Stops.__doc__ or "", _stopping, ("parity.end-of-text",)))


@mutant("continued-restarts", "continue.greedy")
class ContinuedRestarts(Sound):
    """A continued request runs from its prompt: its generated tokens are cut off."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Cut the request back to its prompt."""

        def cut(request: Request) -> Request:
            if not 0 < request.prompt_len < len(request.tokens) or request.take < len(request.tokens):
                return request
            return replace(request, tokens=request.tokens[: request.prompt_len], take=request.prompt_len)

        return super().prefill(tuple(map(cut, batch)), cached, grants)


@mutant("greedy-drifts", "mates.repeat", "mates.seeds")
class GreedyDrifts(Sound):
    """Atomics in a reduction: the same request makes other tokens the second time."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Change the prompt's first token according to how many requests came before."""
        self._came = getattr(self, "_came", 0) + 1
        shifted = tuple(
            replace(request, tokens=((request.tokens[0] + self._came // 2) % self._vocab_size, *request.tokens[1:]))
            if request.tokens
            else request
            for request in batch
            if all(0 <= token < self._vocab_size for token in request.tokens)
        )
        return super().prefill(shifted if len(shifted) == len(batch) else batch, cached, grants)
