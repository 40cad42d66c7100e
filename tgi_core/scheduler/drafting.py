"""Speculation: which rows get drafts for the next step, from which source, and how many.

A draft is worth its cost while it is likely to be accepted and the step does not take much longer for it. Both are measured: the share
of a row's drafts from each source that were accepted lately, and the time that a draft adds to a step of as many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tgi_core.scheduler.ngram import NO_MATCH, NgramIndex
from tgi_core.scheduler.prediction import Prediction
from tgi_core.scheduler.row_drafts import CERTAIN, PROPOSED, DraftSource, Proposer, ReportedTokens, RowDrafts
from tgi_core.scheduler.sequence import Sequence
from tgi_core.scheduler.step_times import StepTimes
from tgi_core.scheduler.suffix import EarlierAnswers, SuffixProposer
from tgi_core.wire.types import Token

_WEIGHT = 0.25
"""Weight of a step's drafts in the moving average of a row's acceptance."""
_RECOVERY = 0.01
"""What a row's acceptance gains with each step without drafts, so that a row whose drafts failed gets some again."""
_LEAST_CHANCE = 0.2
"""Chance of acceptance below which a draft is not run, even if it seems to cost nothing."""
_HOPEFUL = 0.5
"""Acceptance from which a row waits for its unread tokens rather than decode the next one without drafts."""

ObserveDrafts = Callable[[DraftSource, int, int], None]
"""Called for each row of a step with drafts once it is read, with the number of its drafts and of those that were accepted."""


class Drafter:
    """Proposes drafts of at most `most` tokens, also from earlier answers if those are kept, and from what the backend's speculator
    guesses if there is one."""

    def __init__(
        self,
        most: int,
        times: StepTimes,
        earlier_answers: bool = False,
        observe: ObserveDrafts | None = None,
        speculator: bool = False,
    ) -> None:
        self.most = most
        self._times, self._speculator = times, speculator
        self._earlier = EarlierAnswers() if earlier_answers else None
        self._observe = observe

    def begin(self, sequence: Sequence) -> None:
        """Prepare a new request."""
        tokens, request = sequence.tokens, sequence.request
        proposers: dict[DraftSource, Proposer] = {}
        if request.grammar is not None:
            proposers[DraftSource.GRAMMAR] = ReportedTokens(tokens, CERTAIN)
        if request.prediction:
            proposers[DraftSource.PREDICTION] = sequence.prediction = Prediction(request.prediction, tokens)
        if self._speculator:
            proposers[DraftSource.MODEL] = ReportedTokens(tokens, PROPOSED)
        proposers[DraftSource.NGRAM] = NgramIndex(tokens)
        if self._earlier is not None:
            proposers[DraftSource.SUFFIX] = SuffixProposer(self._earlier, request.scheduling.salt, tokens)
        sequence.speculation = RowDrafts(proposers)

    def drafts(self, sequence: Sequence, rows: int) -> tuple[int, ...]:
        """Return drafts for a row whose tokens have all been read, in a step of `rows` rows."""
        row, best, length, found = sequence.speculation, NO_MATCH, 0, tuple[int, ...]()
        if row is None:
            return ()
        left = min(self.most, sequence.end - len(sequence.tokens) - 1)
        for source, proposer in row.proposers.items():
            likely = min(left, self._length(rows, row.acceptance[source]))
            if likely > 0 and (match := proposer.find()).length > best.length:
                best, length, row.source = match, likely, source
        if length:
            found = row.proposers[row.source].drafts(best.place, length)
        _recover(row, row.source if found else None)
        return found

    def worth_waiting(self, sequence: Sequence) -> bool:
        """Return whether a row with an unread token should rather sit out and get drafts after that is read."""
        row = sequence.speculation
        if row is None:
            return False
        for source, proposer in row.proposers.items():
            if row.acceptance[source] >= _HOPEFUL and (match := proposer.find()).length:
                return len(proposer.drafts(match.place, 2)) == 2
        return False

    def report(self, source: DraftSource, rows: Mapping[int, Sequence], reported: Mapping[int, tuple[int, ...]]) -> None:
        """Note the tokens that follow rows by their grammars, or by the guess of a speculator; rows by their ids on the shard."""
        for id, tokens in reported.items():
            row = rows[id].speculation if id in rows else None
            proposer = None if row is None else row.proposers.get(source)
            if isinstance(proposer, ReportedTokens):
                proposer.report(tokens)

    def read(self, sequence: Sequence, made: tuple[Token, ...]) -> None:
        """Record the tokens that a step with a row's drafts made, and continue the row behind those that were accepted."""
        row, drafts = sequence.speculation, sequence.drafts
        sequence.computed, sequence.drafts = len(sequence.tokens) - 1, ()
        if row is None:
            return
        accepted = 0
        while accepted < min(len(drafts), len(made)) and made[accepted].id == drafts[accepted]:
            accepted += 1
        share = accepted / (accepted + (accepted < len(drafts)))
        row.acceptance[row.source] += _WEIGHT * (share - row.acceptance[row.source])
        if row.source is DraftSource.PREDICTION and sequence.prediction is not None:
            sequence.prediction.accepted += accepted
            sequence.prediction.rejected += len(drafts) - accepted
        if self._observe is not None:
            self._observe(row.source, len(drafts), accepted)

    def finish(self, sequence: Sequence) -> None:
        """Note a complete answer, from which others may get drafts."""
        if self._earlier is not None:
            request = sequence.request
            self._earlier.add(request.scheduling.salt, sequence.tokens[len(request.input_ids) :])

    def _length(self, rows: int, acceptance: float) -> int:
        """Return the number of drafts of one of the rows with which the step yields most tokens per second."""
        alone = self._times.decoding_s(rows)
        longer = self._times.draft_s(rows) / alone if alone else 0.0
        best, most = 0, 1.0
        gain, chance = 0.0, 1.0
        for length in range(1, self.most + 1):
            chance *= acceptance
            if chance < _LEAST_CHANCE:
                break
            gain += chance
            rate = (1 + gain / rows) / (1 + length * longer)
            if rate > most:
                best, most = length, rate
        return best


def _recover(row: RowDrafts, used: DraftSource | None) -> None:
    """Raise what is expected of sources that were not used in this step."""
    for source in row.proposers:
        if source is not used and row.acceptance[source] < _HOPEFUL:
            row.acceptance[source] += _RECOVERY
