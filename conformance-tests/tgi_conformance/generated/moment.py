"""What is known of a row when it runs in a step: what a generated mutant's condition looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tgi_core.backend import Request


@dataclass(slots=True, eq=False)
class Life:
    """A live row, as the verbs tell it: `done` positions are in launched steps, `blocks` are those of the first cache group."""

    request: Request
    done: int
    blocks: list[int]
    chunks: int = 0
    idled: bool = False
    """It sat out the step before."""
    latest: Moment | None = None

    @property
    def owed(self) -> int:
        """Tokens that it brought and no step has taken yet."""
        return max(0, len(self.request.tokens) - self.done)


@dataclass(slots=True)
class Past:
    """What has happened to a session, and how many were opened before it. `newest` is the event that came last."""

    counts: dict[str, int] = field(default_factory=dict)
    newest: str = ""

    def note(self, event: str, times: int = 1) -> None:
        """Something happened."""
        self.counts[event] = self.counts.get(event, 0) + times
        self.newest = event


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A step as a whole. `past` and `newest` are as they were when it was launched."""

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
    """One row's part of one step: positions start…start + take - 1."""

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
        """The step that brings the request."""
        return self.start == self.request.cached

    @property
    def partial(self) -> bool:
        """Whether it runs a part of a prompt that comes in chunks."""
        brought = len(self.request.tokens)
        return self.start < brought and (self.chunk > 0 or self.start + self.take < brought)

    def block(self, position: int) -> int:
        """The id of the block that a position lies in."""
        index = position // self.shape.block_size
        return self.table[index] if index < len(self.table) else 0
