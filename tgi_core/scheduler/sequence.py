"""A request as the scheduler tracks it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tgi_core.scheduler.prefix import Entry
from tgi_core.scheduler.types import GenerationRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """The prompt and the answer so far, and how much of it the launched steps compute.

    `key` identifies the request for its lifetime; `wire_id` identifies its row on the shard, is new each time the request is continued, and
    is 0 while it has no row.
    """

    key: int
    request: GenerationRequest
    tokens: list[int]
    """The prompt and every token that has been read."""
    total: int
    """The most tokens that prompt and answer may have."""
    end: int
    """How many tokens it may have now: `total`, or 0 while it is paused."""
    wire_id: int = 0
    sent: int = 0
    """Tokens that the row had when it was last admitted."""
    computed: int = 0
    """Positions computed by launched steps."""
    unread: int = 0
    """Tokens that launched steps will yield."""
    rank: tuple[float, int] = (0.0, 0)
    """Its order among its client's requests, which never changes: the smallest starts first, the greatest is preempted first."""
    urgency: float = 0.0
    """An offset in tokens to its client's place in the queue: negative to go before other clients, positive to go after them."""
    counted: bool = False
    """Whether its client was charged for it, when it began."""
    tables: tuple[list[int], ...] = ()
    """Its blocks, per cache group."""
    entries: list[Entry | None] = field(default_factory=list)
    """For each of its first blocks, the prefix entry that it holds; None where the block is its own."""
    enter_at: int = 0
    """How many tokens it must have before its next full block can enter the prefix index."""
    root: bytes = b""
    keys: list[bytes] = field(default_factory=list)
    """The prefix index's keys of its first full blocks."""
    cached: int = 0
    """Tokens that it found in the cache when it was last admitted."""
    passed: int = 0
    """How many later requests were admitted before it because it did not fit."""
    retries: int = 0
    """Faults in a row that only it can have caused, without a new token in between."""
    proven: bool = False
    """Whether it has a new token since it was last admitted."""

    @property
    def paused(self) -> bool:
        """Whether it generates nothing for now, since its client does not read."""
        return not self.end

    @property
    def prompt_left(self) -> int:
        """Tokens of the row's prompt that no launched step computes."""
        return max(0, self.sent - self.computed)

    @property
    def exhausted(self) -> bool:
        """Whether launched steps yield its last token."""
        return len(self.tokens) + self.unread >= self.total

    def pause(self) -> None:
        """Generate nothing until `resume`."""
        self.end = 0

    def resume(self) -> None:
        """Generate again."""
        self.end = self.total

    def rewind(self) -> None:
        """Forget the row on the shard; tokens that were read stay."""
        self.wire_id = self.sent = self.computed = self.unread = self.cached = 0
        self.proven = False
