"""Proposals: too many, invalid tokens, and guesses treated as tokens."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import Row
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.backend.reference import PROPOSALS


@mutant("proposals-unasked", "speculation.proposals")
class ProposalsUnasked(Sound):
    """Every head of a speculator guesses a token, however few drafts the plan asks for."""

    def _propose(self, row: RowState, count: int) -> tuple[int, ...]:
        return super()._propose(row, PROPOSALS)


@mutant("proposals-padded", "speculation.proposals")
class ProposalsPadded(Sound):
    """If a speculator is not sure, it guesses nothing, and its array is padded with -1."""

    def _propose(self, row: RowState, count: int) -> tuple[int, ...]:
        return (*super()._propose(row, count)[:-1], -1)


@mutant("proposals-kept", "speculation.proposals")
class ProposalsKept(Sound):
    """A guess stays in the row, which continues from it (a draft model that appends to the row it is given)."""

    def _propose(self, row: RowState, count: int) -> tuple[int, ...]:
        proposed = super()._propose(row, count)
        row.tokens[-1:] = proposed[:1]
        return proposed


@mutant("proposals-within-prompt", "speculation.proposals")
class ProposalsWithinPrompt(Sound):
    """A row whose prompt is not complete proposes what follows a part of it: the speculator guesses for all rows of a step."""

    def _with_proposals(self, row: RowState, made: Row) -> Row:
        if made.tokens or made.fault or not self._proposed_most:
            return super()._with_proposals(row, made)
        return replace(made, proposed=(row.tokens[0],) * self._proposed_most)


@mutant("proposals-unwanted", "speculation.silence")
class ProposalsUnwanted(Sound):
    """The speculator guesses for all rows of a step, even for those that are told not to propose."""

    def _run(self, row_input: RowInput) -> Row:
        return super()._run(replace(row_input, propose=True))


@mutant("proposals-silenced", "speculation.silence")
class ProposalsSilenced(Sound):
    """A row that is told not to propose in a step returns no token in it either: it is taken out of the batch that is sampled."""

    def _run(self, row_input: RowInput) -> Row:
        made = super()._run(row_input)
        return made if row_input.propose else Row(made.request_id, drafted=made.drafted)
