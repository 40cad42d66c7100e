"""How scenarios drive a session: requests with blocks, steps that grow rows as needed, and expected refusals."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tgi_conformance.baseline import all_wants
from tgi_conformance.calls import NOTHING, Call, Clear, Decode, Filter, Prefill, Read, Ref, sentence
from tgi_conformance.golden import Golden
from tgi_conformance.masks import PHASES
from tgi_conformance.oracle import OracleRow
from tgi_conformance.session_driver import SessionDriver
from tgi_conformance.verdict import NotReached, SuiteFault
from tgi_core.backend import (
    BackendError,
    CacheKind,
    Capabilities,
    Capacity,
    Feature,
    Grant,
    Mixing,
    OutputOptions,
    Request,
    Sampling,
)

PROMPTS = ((3, 1, 4, 1, 5), (9, 2, 6), (5, 3, 5, 8, 9, 7, 9), (2,), (6, 5, 3, 5), (8, 9, 7, 9, 3, 2, 3, 8, 4))
"""Prompts of different lengths, none a multiple of a usual block size."""

PLAIN = OutputOptions(logprobs=False)

_NO_DRAFTS: Mapping[int, Sequence[int]] = MappingProxyType({})

_TOKENS, _PERIOD = 50, 512
"""Prompts use the first 50 tokens of the vocabulary, and are varied with a random text of 512 tokens, repeated as needed."""


def _turned(count: int, by: int) -> list[int]:
    """Return block ids count…1 as a pool that hands out `1 + by` first."""
    falling = list(range(count, 0, -1))
    return falling[-by:] + falling[:-by] if by else falling


class Stage:
    """A session with a block pool, for scenarios. The block given back last is the next one used.

    `seed` draws what a scenario leaves open: prompt tokens, request ids, sampler seeds and the first block.
    """

    def __init__(self, play: SessionDriver, seed: int = 0) -> None:
        self.play, self._seed = play, seed
        draw = random.Random(seed)
        self._shifts = [draw.randrange(_TOKENS) if seed else 0 for _ in range(_PERIOD)]
        self._next_doomed = 0
        self._next_id = 1 + (draw.randrange(1000) if seed else 0)
        self._free = [
            _turned(group.num_blocks, draw.randrange(group.num_blocks) if seed else 0) for group in play.capacity.groups
        ]
        self._held: dict[int, list[list[int]]] = {}
        self._behind: dict[tuple[int, int], int] = {}
        """By row and window group, how many of its first blocks have been taken back."""
        self.thinned: set[int] = set()
        """Rows some of whose blocks have been taken back, so that others cannot share them."""
        self.prompts = tuple(map(self.varied, PROMPTS))

    @property
    def capacity(self) -> Capacity:
        """The limits that the session promised."""
        return self.play.capacity

    @property
    def capabilities(self) -> Capabilities:
        """What the session declared."""
        return self.play.oracle.capabilities

    def has(self, feature: Feature) -> bool:
        """Return whether a feature is declared."""
        return feature in self.capabilities.features

    @property
    def wants(self) -> OutputOptions:
        """Every output that a row can request here."""
        return all_wants(self.capabilities.features)

    def varied(self, prompt: Iterable[int]) -> tuple[int, ...]:
        """Return the text varied by the seed; 0 leaves it as it is. Texts with a common prefix keep one."""
        return tuple((token + shift) % _TOKENS if shift else token for token, shift in zip(prompt, itertools.cycle(self._shifts)))

    def seeded(self, how: Sampling) -> Sampling:
        """Return the sampling with its seed varied by the stage's seed."""
        return replace(how, seed=how.seed ^ (self._seed << 4 & 0xFFFF))

    def folded(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """Return a prompt within the vocabulary."""
        return tuple(token % self.capabilities.vocab_size for token in prompt)

    def request(
        self,
        prompt: Sequence[int],
        sampling: Sampling = Sampling(),
        take: int | None = None,
        *,
        id: int = 0,
        want: OutputOptions = PLAIN,
        **fields: object,
    ) -> Request:
        """Build a request with blocks for the tokens it takes; `shares` is the request whose first `cached` tokens it reuses. Where prompts
        run whole, only as much of the text is its prompt as its first step takes; of a golden transcript, the step takes all of it."""
        tokens = self.folded(prompt)
        name, cached = id or self._new_id(), int(str(fields.pop("cached", 0)))
        took = len(tokens) - cached if take is None else take
        if self.capabilities.whole_prompts and isinstance(self.play.judge.yardstick, Golden):
            took = max(took, int(str(fields.get("prompt_len", len(tokens)))) - cached)
        shares = fields.pop("shares", None)
        self._held[name] = [[] for _ in self._free]
        tables = []
        for index, group in enumerate(self.capacity.groups):
            prefix = shares.blocks[index][: cached // group.block_size] if isinstance(shares, Request) else ()
            tables.append((*prefix, *self._allocate(name, index, len(prefix), cached + took)))
        made = Request(name, tokens, len(tokens), cached, tuple(tables), took, sampling, want)
        made = replace(made, **fields)  # type: ignore[arg-type]
        return replace(made, prompt_len=self._prompt(made.prompt_len, cached + took))

    def _prompt(self, length: int, first: int) -> int:
        """Return how many of a row's first tokens are its prompt, of `length` that could be. Where prompts run whole, they are in its first
        step, which ends at `first`, and in its first block: its other blocks can then be shared, as they do not depend on later tokens."""
        if not self.capabilities.whole_prompts or isinstance(self.play.judge.yardstick, Golden):
            return length
        return min(length, first, *(group.block_size for group in self.capacity.groups))

    def doomed(self, prompt: Sequence[int], **fields: Any) -> Request:
        """Build a request that fails after a few tokens: through its mask, or by the session's own means where masks are not
        declared."""
        lent = self.play.lent
        self._next_doomed = lent.next_doomed = max(self._next_doomed, lent.next_doomed) + 1
        return self.request(prompt, id=self._next_doomed - 1, masked=self.has(Feature.MASKS), **fields)

    def repeat_masks(self) -> None:
        """Give the next requests ids that a mask source treats like those after any other call of this method."""
        rounds = -(-max(self._next_id, self.play.lent.next_id) // PHASES)
        self._next_id = PHASES * rounds + 1

    def _new_id(self) -> int:
        """Return an id that the session has never seen."""
        lent = self.play.lent
        self._next_id = lent.next_id = max(self._next_id, lent.next_id) + 1
        return self._next_id - 1

    def outline(
        self,
        prompt: Sequence[int],
        sampling: Sampling = Sampling(),
        *,
        want: OutputOptions = PLAIN,
        prompt_len: int | None = None,
    ) -> Request:
        """Build a request without blocks, for the yardstick only."""
        tokens = self.folded(prompt)
        known = self._prompt(len(tokens) if prompt_len is None else prompt_len, len(tokens))
        return Request(1, tokens, known, 0, (), len(tokens), sampling, want)

    def grant(self, row: OracleRow, take: int = 1) -> Grant:
        """Grant a row `take` tokens, with the blocks it lacks."""
        id = row.request.id
        tables = tuple(tuple(self._allocate(id, index, len(table), row.done + take)) for index, table in enumerate(row.blocks))
        return Grant(id, take, tables)

    def drafting(self, *batches: Ref, drafts: Mapping[int, Sequence[int]]) -> tuple[Grant, ...]:
        """Return the grants of a step in which the named rows run drafts, and the other rows of the batches take their usual token."""
        return self._growth(batches, drafts)

    def row(self, id: int) -> OracleRow:
        """Return a live row."""
        return next(row for row in self.play.oracle.rows if row.request.id == id)

    def spare_blocks(self, count: int, group: int = 0) -> tuple[int, ...]:
        """Return free blocks without taking them. Raises NotReached."""
        if len(self._free[group]) < count:
            raise NotReached(f"{count} free blocks are needed, {len(self._free[group])} are left")
        return tuple(self._free[group][-count:])

    def prefer(self, blocks: Sequence[int], group: int = 0) -> None:
        """Hand out these free blocks next, in this order."""
        first = set(blocks)
        self._free[group] = [block for block in self._free[group] if block not in first] + list(reversed(blocks))

    def free(self, group: int) -> tuple[int, ...]:
        """Return all free blocks of a cache group."""
        return tuple(self._free[group])

    # steps

    def launch(self, *requests: Request, beside: Ref = NOTHING, grants: Sequence[Grant] | None = None) -> Ref:
        """Launch new requests together with a live batch, without reading the step.

        Requests that do not fit one step are started in several first; the step launched is then the next one of all rows.
        """
        if len(parts := self._parts(requests, beside)) > 1:
            return self.go_on(*self._started(parts, beside, grants))
        given = self._growth([beside] if beside else []) if grants is None else tuple(grants)
        return self._must(Prefill(requests, beside, given))

    def go_on(self, *batches: Ref, grants: Sequence[Grant] | None = None) -> Ref:
        """Launch a step of live batches without reading it; each row takes one token unless `grants` says otherwise.

        Where the session does not mix, rows that would decode next to the chunk of a prompt sit out.
        """
        given = self._growth(batches) if grants is None else tuple(grants)
        return self._must(Decode(batches, self._apart(batches, given)))

    def _apart(self, batches: Iterable[Ref], grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        """Return grants with which no row decodes next to a chunk, on a session that does not mix."""
        rows = {row.request.id: row for batch in batches for row in self.play.oracle.batches.get(batch, ())}
        chunks = [grant for grant in grants if grant.take and grant.request_id in rows and rows[grant.request_id].owed]
        if not chunks or self.capabilities.mixing is not Mixing.NONE:
            return grants
        given = {grant.request_id: grant for grant in grants}
        seated = [replace(given.get(id, Grant(id, 0)), take=0) for id, row in rows.items() if not row.owed]
        return (*(grant for grant in grants if grant.request_id not in rows or rows[grant.request_id].owed), *seated)

    def read(self, step: Ref) -> Ref:
        """Wait for a step and return its number, with which to go on."""
        self._must(Read(step))
        self.collect()
        return step

    def start(self, *requests: Request, beside: Ref = NOTHING, grants: Sequence[Grant] | None = None) -> Ref:
        """Launch requests and read the step.

        Requests that do not fit one step are started in several, which are merged by a step in which no row takes a token.
        """
        if len(parts := self._parts(requests, beside)) > 1:
            batches = self._started(parts, beside, grants)
            rows = [row.request.id for batch in batches for row in self.play.oracle.batches[batch]]
            return batches[0] if len(batches) == 1 else self.decode(*batches, grants=[Grant(id, 0) for id in rows])
        return self.read(self.launch(*requests, beside=beside, grants=grants))

    def _parts(self, requests: Sequence[Request], beside: Ref) -> list[list[Request]]:
        """Split new requests into as few steps as the promised limits allow, keeping their order."""
        running = len(self.play.oracle.batches.get(beside, ()))
        parts: list[list[Request]] = []
        tokens = long = 0
        for request in requests:
            tokens, long = tokens + request.take, long + (request.take > 1)
            if not parts or long > self.capacity.max_prefill_rows or tokens + running > self.capacity.max_step_tokens:
                parts.append([])
                tokens, long = request.take, int(request.take > 1)
            parts[-1].append(request)
        return parts

    def _started(self, parts: Sequence[Sequence[Request]], beside: Ref, grants: Sequence[Grant] | None) -> list[Ref]:
        """Start the parts in steps, and return the batch they have joined, or one batch per part."""
        if not beside:
            return [self.start(*part) for part in parts]
        for part in parts:
            beside, grants = self.start(*part, beside=beside, grants=grants), None
        return [beside]

    def decode(self, *batches: Ref, steps: int = 1, grants: Sequence[Grant] | None = None) -> Ref:
        """Merge batches and run some steps, reading each at once."""
        batch = self.read(self.go_on(*batches, grants=grants))
        for _ in range(steps - 1):
            batch = self.read(self.go_on(batch))
        return batch

    def filter(self, batch: Ref, keep: Iterable[int]) -> Ref:
        """Keep rows and free the blocks of the others. Returns 0 if none are kept."""
        ids = tuple(keep)
        ref = self._must(Filter(batch, ids))
        self.collect()
        return ref if ids else NOTHING

    def clear(self, batch: Ref | None) -> None:
        """Drop a batch, or all batches."""
        self._must(Clear(batch))
        self.collect()

    def refuse(self, kind: type[BackendError], call: Call) -> None:
        """Make a call that must raise `kind`. Raises SuiteFault if the oracle expects otherwise."""
        expected = self.play.oracle.expect(call)
        if kind not in {why for why, _ in expected.errors}:
            found = "; ".join(f"{error.__name__} ({why})" for error, why in expected.errors) or "nothing to refuse"
            raise SuiteFault(f"the scenario expects {kind.__name__} from {sentence(0, call)}, but the oracle expects {found}")
        self.play.call(call)
        self.collect()

    def _must(self, call: Call) -> Ref:
        """Make a call that the contract allows."""
        return self.play.call(call, allowed=True)

    # blocks

    def collect(self) -> None:
        """Take back the blocks of rows that are no longer alive."""
        live = {row.request.id for row in self.play.oracle.rows}
        for id in [id for id in self._held if id not in live and id in self.play.oracle.used_ids]:
            for free, blocks in zip(self._free, self._held.pop(id), strict=True):
                free.extend(reversed(blocks))

    def take_back(self, group: int | None = None) -> None:
        """Take back the blocks of a window group, or of all, that their rows no longer see and no other row does."""
        rows = self.play.oracle.rows
        for index, cache in enumerate(self.capacity.groups):
            if group not in (None, index) or cache.kind is not CacheKind.WINDOW:
                continue
            seen = {block for row in rows for block in row.blocks[index][len(row.gone(index, cache)) :]}
            for row in rows:
                key, gone = (row.request.id, index), row.gone(index, cache)
                first, self._behind[key] = self._behind.get(key, 0), len(gone)
                held = self._held[row.request.id][index] if row.request.id in self._held else []
                for block in gone[first:]:
                    if block in held and block not in seen:
                        held.remove(block)
                        self._free[index].append(block)
                        self.thinned.add(row.request.id)

    def keep_blocks(self, id: int) -> None:
        """Never return a row's blocks to the pool, because others read its prefix."""
        self._held.pop(id)

    def _growth(self, batches: Iterable[Ref], drafts: Mapping[int, Sequence[int]] = _NO_DRAFTS) -> tuple[Grant, ...]:
        """Grant blocks to the rows that need one for their next token or their drafts, and let those sit out whose drafts are unread;
        the others need no grant."""
        grants = []
        for row in (row for batch in batches for row in self.play.oracle.batches.get(batch, [])):
            given = tuple(drafts.get(row.request.id, ()))
            if row.drafting:
                grants.append(Grant(row.request.id, 0))
            elif not row.owed and not row.failed:
                grant = self.grant(row, 1 + len(given))
                grants += [replace(grant, drafts=given)] if given else [grant] if any(grant.blocks) else []
        return tuple(grants)

    def _allocate(self, id: int, group: int, held: int, positions: int) -> list[int]:
        size, free = self.capacity.groups[group].block_size, self._free[group]
        count = max(0, -(-positions // size) - held)
        if count > len(free):
            self.take_back(group)
        if count > len(free):
            raise NotReached(f"{count} blocks are needed for row {id}, {len(free)} are free")
        taken = [free.pop() for _ in range(count)]
        if taken:
            self._held.setdefault(id, [[] for _ in self._free])[group] += taken
        return taken
