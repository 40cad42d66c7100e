"""Speculation: which rows get drafts for the next step, from which source, and how many.

A draft is worth its cost if it is likely to be accepted and does not make the step much longer. Both are measured: the share of
each source's drafts that was accepted lately, by row and overall, and the time that a draft adds to a step of about as many rows.
Drafts that are not expected to save time only run as probes: one row at a time, for a small fraction of the total time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tgi_core.scheduler.ngram import NO_MATCH, NgramIndex
from tgi_core.scheduler.prediction import Prediction
from tgi_core.scheduler.row_drafts import (
    CERTAIN,
    FIRST_PAUSE,
    PROPOSED,
    DraftSource,
    Guesses,
    Outlook,
    Proposer,
    Record,
    ReportedTokens,
    RowDrafts,
)
from tgi_core.scheduler.sequence import Sequence
from tgi_core.scheduler.step_times import StepTimes
from tgi_core.scheduler.suffix import EarlierAnswers, SuffixProposer
from tgi_core.wire.types import Token

_FIRST_ACCEPTANCE = {
    DraftSource.GRAMMAR: 0.9,
    DraftSource.PREDICTION: 0.8,
    DraftSource.MODEL: 0.6,
    DraftSource.NGRAM: 0.5,
    DraftSource.SUFFIX: 0.5,
}
_WEIGHT = 0.1
"""Weight of a draft in the moving average of a row's acceptance."""
_PROBE_WEIGHT = 0.5
"""The same for probes, which are rare."""
_LEAST_CHANCE = 0.1
"""Expected acceptance below which a draft is not run, even if it seems to cost nothing."""
_HOPEFUL = 0.5
"""Expected acceptance from which a row waits for its unread tokens rather than decode the next one without drafts."""
_PROBING = 0.005
"""Share of the time that probes may take if all of them fail."""
_MOST_CREDIT = 0.5
"""Maximum time that can be saved up for probes, in steps."""
_MARGIN = 1.5
"""Factor on the cost of a draft: rows that advance unevenly end at different times, so a draft must save clearly more than it costs."""
_UNKNOWN_SHARE = 0.1
"""Assumed cost of a draft before it is measured, as a share of a step's time per row."""
_UNMEASURED = range(16, 20)
"""Steps that run without drafts if none has been measured without them, counted like `_since_plain`."""
_NEVER = 1 << 62
"""More tokens than a row can have."""
_STALE = 100
"""Number of steps after which one is measured without drafts again."""

ObserveDrafts = Callable[[DraftSource, int, int], None]
"""Called for each row with drafts once its step is read, with their source, their number and how many were accepted."""


class Drafter:
    """Chooses drafts of at most `most` tokens per row: from its text and grammar, and with `earlier_answers` or `speculator` also
    from earlier answers or the backend's speculator."""

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
        self._records = {source: (Record(first), Record(first)) for source, first in _FIRST_ACCEPTANCE.items()}
        """For short matches, and for long ones."""
        self._rows, self._plain, self._share, self._asking, self._least = 1, False, 0.0, 0.0, 1.0
        """About this step: its rows, whether it runs without drafts, the share of its time that a draft and a proposing row add,
        and the acceptance from which a draft pays."""
        self._room, self._unknown = most, True
        """Maximum number of drafts of a row, or of all rows together while the cost of a draft is unknown."""
        self._credit = _MOST_CREDIT
        """Time for probes, in steps."""
        self._since_plain: dict[int, int] = {}
        """Number of steps since one was planned without drafts because `_STALE` was reached, by the bit length of the number of rows."""

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
        sequence.speculation = RowDrafts(tuple(self._guesses(source, proposer) for source, proposer in proposers.items()))

    def start_step(self, rows: int) -> bool:
        """Prepare a step in which `rows` rows decode. Return whether any may get drafts: now and then, a step is measured without."""
        if not rows:
            return False
        self._rows, self._credit = rows, min(_MOST_CREDIT, self._credit + _PROBING)
        share = self._times.draft_share(rows)
        self._share = _UNKNOWN_SHARE / rows if share is None else share
        self._room, self._unknown = self.most, share is None
        self._least = max(_LEAST_CHANCE, _MARGIN * rows * self._share)
        size = rows.bit_length()
        since = self._since_plain[size] = self._since_plain.get(size, -1) + 1
        if since >= _STALE:
            self._since_plain[size] = 0
        self._plain = since >= _STALE or (since in _UNMEASURED and not self._times.measured(rows))
        return not self._plain

    def proposing(self, decoding: Collection[Sequence]) -> tuple[int, frozenset[int]]:
        """Return how many of the decoding rows propose drafts for the next step, and the keys of those that are told not to:
        their drafts are not expected to pay for the speculator's time, and it is not their turn for a probe."""
        if not self._speculator or not decoding:
            return 0, frozenset()
        share = self._times.proposal_share(self._rows)
        self._asking = _UNKNOWN_SHARE / self._rows if share is None else share
        silent = frozenset(sequence.key for sequence in decoding if self._plain or not self._worth_asking(sequence))
        return len(decoding) - len(silent), silent

    def drafts(self, sequence: Sequence) -> tuple[int, ...]:
        """Return drafts for a row in the started step. All of its tokens must have been read."""
        row, size = sequence.speculation, len(sequence.tokens)
        if row is None or size < row.again:
            return ()
        left, may_probe = min(self._room, sequence.end - size - 1), self._may_probe() or row.waited
        if left <= 0:
            return ()
        best, length, row.waited, row.again = NO_MATCH, 0, False, 0
        least, again, hopeful = 0.0 if may_probe else self._least, _NEVER, False
        for guesses in row.sources:
            short, long = guesses.short, guesses.long
            again = min(again, short.again, long.again)
            hopeful = hopeful or long.acceptance >= self._least or short.acceptance >= self._least
            if (size < long.again or long.acceptance < least) and (size < short.again or short.acceptance < least):
                continue
            match = guesses.proposer.find()
            if match.length > best.length:
                outlook = guesses.outlook(match)
                if size >= outlook.again and (expected := outlook.expected) >= least:
                    best, length, row.chosen, row.outlook = match, self._length(expected), guesses, outlook
        if not best.length or row.chosen is None:
            row.again = again if hopeful else max(again, size + FIRST_PAUSE)  # without hope, the search was for a probe
            return ()
        row.probe = not length
        found = row.chosen.proposer.drafts(best.place, min(left, length or 1))
        self._credit -= self._share * len(found) * row.probe
        self._room -= len(found) * self._unknown
        return found

    def worth_waiting(self, sequence: Sequence) -> bool:
        """Return whether a row with an unread token should skip the step, to get drafts once that token is read."""
        row, size = sequence.speculation, len(sequence.tokens)
        if row is None or size < row.again:
            return False
        for guesses in row.sources:
            if (match := guesses.proposer.find()).length:
                outlook = guesses.outlook(match)
                hopeful = outlook.expected >= max(_HOPEFUL, self._least)
                row.waited = not hopeful and size >= outlook.again and self._may_probe()
                self._credit -= row.waited / self._rows
                return (hopeful or row.waited) and len(guesses.proposer.drafts(match.place, 2)) == 2
        return False

    def report(self, source: DraftSource, rows: Mapping[int, Sequence], reported: Mapping[int, tuple[int, ...]]) -> None:
        """Record the tokens that grammars force, or that a speculator guesses, to follow each row's. Rows are keyed by wire id."""
        for id, tokens in reported.items():
            row = rows[id].speculation if id in rows else None
            guesses = None if row is None else row.find(source)
            if guesses is not None and isinstance(guesses.proposer, ReportedTokens):
                guesses.proposer.report(tokens)

    def read(self, sequence: Sequence, made: tuple[Token, ...]) -> None:
        """Record the tokens that a step with drafts made for a row, which continues after the accepted ones."""
        row, drafts = sequence.speculation, sequence.drafts
        sequence.computed, sequence.drafts = len(sequence.tokens) - 1, ()
        if row is None:
            return
        accepted = 0
        while accepted < min(len(drafts), len(made)) and made[accepted].id == drafts[accepted]:
            accepted += 1
        if row.chosen is None or row.outlook is None:
            return
        row.outlook.note(accepted, accepted < len(drafts), _PROBE_WEIGHT if row.probe else _WEIGHT)
        if not accepted and (row.probe or not self._length(row.outlook.acceptance)):
            row.outlook.fall_back(len(sequence.tokens))
        source = row.chosen.source
        if source is DraftSource.PREDICTION and sequence.prediction is not None:
            sequence.prediction.accepted += accepted
            sequence.prediction.rejected += len(drafts) - accepted
        if self._observe is not None:
            self._observe(source, len(drafts), accepted)

    def finish(self, sequence: Sequence) -> None:
        """Record a complete answer, from which others may get drafts."""
        if self._earlier is not None:
            request = sequence.request
            self._earlier.add(request.scheduling.salt, sequence.tokens[len(request.input_ids) :])

    def _guesses(self, source: DraftSource, proposer: Proposer) -> Guesses:
        short, long = self._records[source]
        return Guesses(source, proposer, Outlook(short.acceptance, short), Outlook(long.acceptance, long))

    def _may_probe(self) -> bool:
        """Return whether there is time for a probe, and drafts would pay if all were accepted."""
        return self._credit >= 0 and self._least < 1

    def _worth_asking(self, sequence: Sequence) -> bool:
        """Return whether a row should propose drafts."""
        row = sequence.speculation
        guesses = None if row is None else row.find(DraftSource.MODEL)
        if row is None or guesses is None:
            return True
        outlook = guesses.long
        if len(sequence.tokens) + 1 < outlook.again:
            return False
        if self._length(outlook.expected, self._asking):
            return True
        probe = self._may_probe() and self._length(1.0, self._asking) > 0
        if probe:
            row.waited, row.again = True, 0
        self._credit -= self._asking * probe
        return probe

    def _length(self, acceptance: float, beside: float = 0.0) -> int:
        """Return the number of drafts for one row that yields the most tokens per second, if making them costs the share `beside`
        of a step."""
        if acceptance < self._least:
            return 0
        best, most = 0, 1.0
        gain, chance = 0.0, 1.0
        for length in range(1, self.most + 1):
            chance *= acceptance
            if chance < _LEAST_CHANCE:
                break
            gain += chance
            rate = (1 + gain / self._rows) / (1 + _MARGIN * (length * self._share + beside))
            if rate > most:
                best, most = length, rate
        return best
