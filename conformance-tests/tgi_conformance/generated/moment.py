"""Facts about a row as it runs in a step, which a generated mutant's condition examines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tgi_core.backend import Request


@dataclass(slots=True, eq=False)
class Life:
    """A live row as seen from the verbs: `done` positions are in launched steps; `blocks` are those of the first cache group."""

    request: Request
    done: int
    blocks: list[int]
    chunks: int = 0
    idled: bool = False
    """Whether it sat out the previous step."""
    latest: Moment | None = None

    @property
    def owed(self) -> int:
        """How many of the request's tokens no step has taken yet."""
        return max(0, len(self.request.tokens) - self.done)


@dataclass(slots=True)
class Past:
    """What has happened to a session, and how many were opened before it. `newest` is the last event."""

    counts: dict[str, int] = field(default_factory=dict)
    newest: str = ""

    def note(self, event: str, times: int = 1) -> None:
        """Record an event."""
        self.counts[event] = self.counts.get(event, 0) + times
        self.newest = event


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A step as a whole. `past` and `newest` are from the time of its launch."""

    number: int
    mates: tuple[Request, ...]
    """The requests of its rows, in order."""
    tokens: int
    merged: bool
    joined: bool
    ahead: bool
    past: Mapping[str, int]
    newest: str
    block_size: int
    max_row_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """A row's part of a step: positions start…start + take - 1."""

    request: Request
    start: int
    take: int
    place: int
    chunk: int
    """How many parts of its prompt ran before."""
    idled: bool
    table: tuple[int, ...]
    shape: Shape

    @property
    def last(self) -> int:
        """The last position that it runs."""
        return self.start + self.take - 1

    @property
    def rows(self) -> int:
        """How many rows run in the step."""
        return len(self.shape.mates)

    @property
    def fresh(self) -> bool:
        """Whether this is the request's first step."""
        return self.start == self.request.cached

    @property
    def partial(self) -> bool:
        """Whether it runs a part of a chunked prompt."""
        brought = len(self.request.tokens)
        return self.start < brought and (self.chunk > 0 or self.start + self.take < brought)

    def block(self, position: int) -> int:
        """Return the id of the block that contains a position."""
        index = position // self.shape.block_size
        return self.table[index] if index < len(self.table) else 0
