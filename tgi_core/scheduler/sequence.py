"""A request as the scheduler tracks it: its tokens, blocks, place in the queue and drafts."""

from __future__ import annotations

from dataclasses import dataclass, field

from tgi_core.scheduler.prediction import Prediction
from tgi_core.scheduler.prefix import Entry
from tgi_core.scheduler.row_drafts import RowDrafts
from tgi_core.scheduler.types import GenerationRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """The prompt and the answer so far, and how many of their tokens the launched steps compute.

    `key` identifies the request for its lifetime; `wire_id` identifies its row on the shard, is new each time the request is
    continued, and is 0 while it has no row.
    """

    key: int
    request: GenerationRequest
    tokens: list[int]
    """The prompt and all tokens read so far."""
    total: int
    """Maximum number of tokens of the prompt and the generated text."""
    end: int
    """Current maximum number of tokens: `total`, or 0 while paused."""
    wire_id: int = 0
    sent: int = 0
    """Number of tokens of the row when it was last admitted."""
    computed: int = 0
    """Number of positions computed by launched steps."""
    unread: int = 0
    """Number of tokens that launched steps will yield."""
    rank: tuple[float, int] = (0.0, 0)
    """Fixed order among the client's requests: the smallest starts first, the greatest is preempted first."""
    urgency: float = 0.0
    """Offset, in tokens, to the client's place in the queue: negative to precede other clients, positive to follow them."""
    counted: bool = False
    """Whether the client has been charged for the request, when it began."""
    tables: tuple[list[int], ...] = ()
    """Blocks per cache group."""
    entries: tuple[list[Entry | None], ...] = ()
    """Per cache group, for each of the first blocks, the prefix entry that the row holds; None if the block is the row's own or gone."""
    unseen: list[int] = field(default_factory=list)
    """Number of first blocks per cache group that have been taken back, since they are outside of the group's window."""
    enter_at: int = 0
    """Number of tokens required before the next full block can enter the prefix index."""
    root: bytes = b""
    keys: list[bytes] = field(default_factory=list)
    """Keys of the first full blocks in the prefix index."""
    cached: int = 0
    """Number of tokens found in the cache when last admitted."""
    overtaken: int = 0
    """Number of later requests that overtook this one because it did not fit."""
    retries: int = 0
    """Number of consecutive faults that only this request can have caused, without a new token in between."""
    proven: bool = False
    """Whether there is a new token since the last admission."""
    losses: int = 0
    """Number of consecutive losses of its shard, without a new token in between."""
    deadline: float | None = None
    """Time on the scheduler's clock by which the request must have ended."""
    drafts: tuple[int, ...] = ()
    """Drafts in a launched step that has not been read; the row takes part in no other step until then."""
    speculation: RowDrafts | None = None
    """Where its drafts come from; None without speculation."""
    prediction: Prediction | None = None
    """The prediction among these."""

    @property
    def paused(self) -> bool:
        """Whether generation is paused, since the client does not read."""
        return not self.end

    @property
    def prompt_left(self) -> int:
        """Number of tokens of the row's prompt that no launched step computes."""
        return max(0, self.sent - self.computed)

    @property
    def exhausted(self) -> bool:
        """Whether launched steps yield the last token."""
        return len(self.tokens) + self.unread >= self.total

    def pause(self) -> None:
        """Pause generation until `resume`."""
        self.end = 0

    def resume(self) -> None:
        """Resume generation."""
        self.end = self.total

    def rewind(self) -> None:
        """Forget the row on the shard; tokens that have been read are kept."""
        self.wire_id = self.sent = self.computed = self.unread = self.cached = 0
        self.drafts = ()
        self.proven = False
