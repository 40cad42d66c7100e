"""A request on its way through the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    wire_id: int = 0
    sent: int = 0
    """Tokens that the row brought along when it was last admitted."""
    computed: int = 0
    """Positions in launched steps."""
    unread: int = 0
    """Tokens that launched steps will yield."""
    tables: tuple[list[int], ...] = field(default=())
    retries: int = 0
    """How often a fault has sent it back to the queue without a new token in between."""

    @property
    def prompt_left(self) -> int:
        """Tokens it brought that no step has taken yet."""
        return max(0, self.sent - self.computed)

    @property
    def exhausted(self) -> bool:
        """Whether launched steps yield all the tokens it may have."""
        made = len(self.tokens) + self.unread - len(self.request.input_ids)
        return made >= self.request.stopping.max_new_tokens

    def rewind(self, groups: int) -> None:
        """Forget the device's side; what was read stays."""
        self.wire_id = self.sent = self.computed = self.unread = 0
        self.tables = tuple([] for _ in range(groups))
