"""What a clause is, and a small hand with which it drives a session."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from tgi_core.backend import EMPTY, Capacity, Grant, Handle, Request, Rows, Sampling, Step, Want
from tgi_core.backend.session import Session


@dataclass(frozen=True, slots=True)
class Subject:
    """A backend under test: `open_session` opens and warms a fresh session each time."""

    open_session: Callable[[], tuple[Session, Capacity]]
    vocab_size: int

    def drive(self) -> Driver:
        """A driver over a fresh session."""
        session, capacity = self.open_session()
        return Driver(session, capacity, self.vocab_size)


@dataclass(frozen=True, slots=True)
class Clause:
    """One law. `sentence` is the law in words; `check` raises AssertionError where it is broken."""

    id: str
    sentence: str
    check: Callable[[Subject], None]


@dataclass(slots=True)
class Row:
    """A request that the driver runs: where its blocks are and what it has made."""

    request: Request
    length: int
    blocks: list[int]
    tokens: list[int] = field(default_factory=list)


class Driver:
    """Runs requests by the contract in lock step, with blocks of the first cache group."""

    def __init__(self, session: Session, capacity: Capacity, vocab_size: int) -> None:
        self.session, self.capacity, self.vocab_size = session, capacity, vocab_size
        self.rows: dict[int, Row] = {}
        self._ids = itertools.count(1)
        self._free = list(range(capacity.groups[0].num_blocks, 0, -1))

    def request(self, tokens: tuple[int, ...], take: int | None = None, **fields: object) -> Request:
        """A request with blocks for what it takes; token ids are folded into the vocabulary."""
        folded = tuple(token % self.vocab_size for token in tokens)
        taken = len(folded) if take is None else take
        blocks = self._allocate(taken, 0)
        sampling = fields.pop("sampling", Sampling())
        want = fields.pop("want", Want(logprobs=False))
        assert isinstance(sampling, Sampling) and isinstance(want, Want) and not fields
        made = Request(next(self._ids), folded, len(folded), 0, (tuple(blocks),), taken, sampling, want)
        self.rows[made.id] = Row(made, taken, blocks)
        return made

    def grant(self, id: int, take: int = 1) -> Grant:
        """Room for `take` more tokens of a row."""
        row = self.rows[id]
        more = self._allocate(row.length + take, len(row.blocks))
        row.blocks += more
        row.length += take
        return Grant(id, take, (tuple(more),))

    def prefill(self, *requests: Request, cached: Handle = EMPTY, grants: tuple[Grant, ...] = ()) -> Handle:
        """Launch, read, note the tokens."""
        return self._read(self.session.prefill(requests, cached, grants))

    def decode(self, *batches: Handle, ids: tuple[int, ...]) -> Handle:
        """One token for each of the rows `ids`."""
        return self._read(self.session.decode(batches, tuple(self.grant(id) for id in ids)))

    def generate(self, request: Request, count: int) -> list[int]:
        """All of a request by itself."""
        handle = self.prefill(request)
        while len(self.rows[request.id].tokens) < count:
            handle = self.decode(handle, ids=(request.id,))
        self.session.clear(handle)
        return self.rows[request.id].tokens

    def _read(self, step: Step) -> Handle:
        rows: Rows = self.session.rows(step)
        for row in rows.rows:
            assert row.fault is None, row.fault
            self.rows[row.request_id].tokens += row.tokens
        return step.handle

    def _allocate(self, positions: int, held: int) -> list[int]:
        needed = -(-positions // self.capacity.groups[0].block_size)
        return [self._free.pop() for _ in range(held, needed)]
