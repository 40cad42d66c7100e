"""A planned step: which rows run, how many tokens of each, and which blocks and drafts they get."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace

from tgi_core.backend import Grant
from tgi_core.blocks import Blocks
from tgi_core.scheduler.prefill_budget import padded_size
from tgi_core.scheduler.sequence import Sequence
from tgi_core.wire.types import ShardRequest, needs_masks


@dataclass(frozen=True, slots=True)
class ScheduledRow:
    """One row's part of a step: `take` tokens, the `blocks` that were allocated for them, and the `drafts` among them."""

    sequence: Sequence
    take: int
    blocks: Blocks
    drafts: tuple[int, ...] = ()

    def as_request(self) -> ShardRequest:
        """Return the request to send to the shard, for a row that it does not have yet."""
        sequence, wanted = self.sequence, self.sequence.request
        tokens, want = tuple(sequence.tokens), wanted.want
        if len(tokens) > len(wanted.input_ids):  # continued: the prompt's logprobs came with the first token
            want = replace(want, prompt_logprobs=False)
        row = replace(
            wanted.request,
            id=sequence.wire_id,
            tokens=tokens,
            cached=sequence.cached,
            blocks=self.blocks,
            take=self.take,
            want=want,
            masked=needs_masks(wanted.stopping, wanted.grammar),
        )
        return ShardRequest(row, wanted.stopping, wanted.grammar, wanted.images)


@dataclass(slots=True)
class StepPlan:
    """A step to launch. A running row in none of the lists has a prompt that waits for budget, and is not part of the step."""

    decoding: list[Sequence] = field(default_factory=list)
    """Rows that decode one token within their current blocks."""
    grown: list[ScheduledRow] = field(default_factory=list)
    """Rows that need a grant: for a token in a new block, for drafts, or for the next chunk of a prompt."""
    skipped: list[Sequence] = field(default_factory=list)
    """Rows that would decode by default but must not: launched steps yield their last token or run their drafts, or the step is full."""
    admitted: list[ScheduledRow] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    chunks: int = 0
    """Number of the grown rows that run a chunk of their prompt."""
    proposing: int = 0
    """Number of decoding rows that propose drafts."""
    silent: frozenset[int] = frozenset()
    """Keys of decoding rows that could propose drafts but are told not to."""

    @property
    def empty(self) -> bool:
        """Whether the step has no rows."""
        return not (self.admitted or self.decoding or self.grown)

    @property
    def tokens(self) -> int:
        """Number of tokens computed in the step."""
        return len(self.decoding) + sum(item.take for item in self.grown) + sum(item.take for item in self.admitted)

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens among them. A decoding row takes one token."""
        return self.padded_prompt_tokens(())

    def padded_prompt_tokens(self, sizes: tuple[int, ...]) -> int:
        """Number of tokens that a device computes for the prompt tokens if it pads each row's part to one of `sizes`."""
        takes = [item.take for item in self.grown if item.take > 1 and not item.drafts] + [item.take for item in self.admitted]
        return sum(padded_size(take, sizes) for take in takes)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Grants of the running rows."""
        silent = self.silent
        taken = [
            Grant(item.sequence.wire_id, item.take, item.blocks, item.drafts, item.sequence.key not in silent)
            for item in self.grown
        ]
        taken += [Grant(sequence.wire_id, 0) for sequence in self.skipped]
        if silent:
            taken += [Grant(item.wire_id, 1, propose=False) for item in self.decoding if item.key in silent]
        return tuple(taken)

    def leave_out_all_but(self, running: Container[int]) -> None:
        """Drop rows that left during the turn, since they have nothing to undo. `running` contains the wire ids of the others."""
        self.decoding = [item for item in self.decoding if item.wire_id in running]
        self.grown = [item for item in self.grown if item.sequence.wire_id in running]
        self.admitted = [item for item in self.admitted if item.sequence.wire_id in running]
