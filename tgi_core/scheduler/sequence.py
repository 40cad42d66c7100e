"""A request on its way through the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from tgi_core.scheduler.prefix import Entry
from tgi_core.scheduler.types import GenerationRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt and answer so far, and how much of it the device has been told to compute.

    `key` is the client's, for good; `wire_id` names the row in the shard and is new each time the request is continued.
    """

    key: int
    request: GenerationRequest
    tokens: list[int]
    """The prompt and every token that has been read."""
    total: int
    """How many tokens it may have in all."""
    end: int
    """How many it may have now: `total`, or none while nobody reads them."""
    wire_id: int = 0
    sent: int = 0
    """Tokens that the row brought along when it was last admitted."""
    computed: int = 0
    """Positions in launched steps."""
    unread: int = 0
    """Tokens that launched steps will yield."""
    rank: tuple[float, int] = (0.0, 0)
    """Its place among its client's requests, for good: the smaller goes first. Of rows the greatest is preempted first."""
    urgency: float = 0.0
    """Tokens of others that it goes before, or after if positive, when its client's turn is found."""
    counted: bool = False
    """Whether its client has had its turn for it: it has begun."""
    tables: tuple[list[int], ...] = ()
    """Its blocks, per cache group."""
    entries: list[Entry | None] = field(default_factory=list)
    """For each of its first blocks the prefix entry that it holds there, None where the block is its own."""
    enter_at: int = 0
    """How many tokens it must have before one block more can be entered."""
    root: bytes = b""
    keys: list[bytes] = field(default_factory=list)
    """The prefix index's keys of its first full blocks."""
    cached: int = 0
    """Tokens that it found in the cache when it was last admitted."""
    passed: int = 0
    """How many younger ones went first since there was no room for it."""
    retries: int = 0
    """How many faults in a row can only have been its own, without a new token in between."""
    proven: bool = False
    """Whether it has got a token since it was last admitted."""

    @property
    def paused(self) -> bool:
        """Whether nobody reads what it makes."""
        return not self.end

    @property
    def prompt_left(self) -> int:
        """Tokens it brought that no step has taken yet."""
        return max(0, self.sent - self.computed)

    @property
    def exhausted(self) -> bool:
        """Whether launched steps yield all the tokens it may have."""
        return len(self.tokens) + self.unread >= self.total

    def pause(self) -> None:
        """Make no token until `go_on`."""
        self.end = 0

    def go_on(self) -> None:
        """Make tokens again."""
        self.end = self.total

    def rewind(self) -> None:
        """Forget the device's side; what was read stays."""
        self.wire_id = self.sent = self.computed = self.unread = self.cached = 0
        self.proven = False
