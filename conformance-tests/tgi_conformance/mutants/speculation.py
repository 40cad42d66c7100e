"""Drafts: what is accepted, and by which random number, penalties and mask."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import MaskRow, Row, RowFault, RowFaultKind, reference
from tgi_core.backend import sampling as formula
from tgi_core.backend.ledger import Launch, Work
from tgi_core.backend.masking import allowed_tokens


class Cut(Sound):
    """Runs only some of a row's drafts, and says that it ran all."""

    def count(self, work: Work) -> int:
        """Return how many drafts to run."""
        return len(work.drafts)

    def _verify(self, work: Work, states: list[int]) -> Row:
        count = self.count(work)
        made = super()._verify(replace(work, drafts=work.drafts[:count]), states[: count + 1])
        return replace(made, drafted=len(work.drafts))


@mutant("no-bonus-token", "speculation.accept")
class NoBonusToken(Cut):
    """Nothing follows the last draft, whose logits are there and are thrown away (several early implementations)."""

    def count(self, work: Work) -> int:
        """Treat the last draft as a bonus token."""
        return len(work.drafts) - 1


@mutant("one-too-many-kept", "speculation.reject", "speculation.beside")
class OneTooManyKept(Sound):
    """The token after the first that is not the draft is kept too: it follows a draft that the row does not have."""

    def _verify(self, work: Work, states: list[int]) -> Row:
        made = super()._verify(work, states)
        if made.fault is not None or len(made.tokens) > len(work.drafts):
            return made
        more = self._sample(work, states[len(made.tokens)])
        work.row.accept(())
        return replace(
            made,
            tokens=made.tokens + more["tokens"],
            logprobs=made.logprobs + more["logprobs"],
            top=made.top + more["top"],
        )


@mutant("draft-for-token", "speculation.reject", "speculation.random")
class DraftForToken(Sound):
    """Where a token is not the draft, the draft is returned instead (an index into the wrong one of two arrays)."""

    def _verify(self, work: Work, states: list[int]) -> Row:
        made = super()._verify(work, states)
        if made.fault is None and len(made.tokens) <= len(work.drafts):
            made = replace(made, tokens=work.drafts[: len(made.tokens)])
            work.row.tokens[-1] = made.tokens[-1]
        return made


@mutant("drafts-unchecked", "speculation.reject", "speculation.random")
class DraftsUnchecked(Sound):
    """All drafts are kept, whatever the model says: correct as long as drafts are right."""

    def _verify(self, work: Work, states: list[int]) -> Row:
        known = len(work.row.tokens)
        made = super()._verify(work, states)
        if made.fault is None and len(made.tokens) <= len(work.drafts):
            extra = 1 + len(work.drafts) - len(made.tokens)
            work.row.tokens[known:] = [*work.drafts, made.tokens[-1]]
            work.row.accept(())
            made = replace(
                made,
                tokens=(*work.drafts, made.tokens[-1]),
                logprobs=made.logprobs + made.logprobs[-1:] * extra,
                top=made.top + made.top[-1:] * extra,
            )
        return made


@mutant("drafted-is-accepted", "speculation.reject")
class DraftedIsAccepted(Sound):
    """`drafted` counts the drafts that were kept, so that no rate of acceptance is ever below 1."""

    def _verify(self, work: Work, states: list[int]) -> Row:
        made = super()._verify(work, states)
        return replace(made, drafted=max(0, len(made.tokens) - 1))


@mutant("logprobs-shifted", "speculation.accept")
class LogprobsShifted(Sound):
    """Each token of a step has the logprob of the one before it."""

    def _verify(self, work: Work, states: list[int]) -> Row:
        made = super()._verify(work, states)
        return replace(made, logprobs=(*made.logprobs[:1], *made.logprobs[:-1]))


@mutant("top-of-the-last", "speculation.accept")
class TopOfTheLast(Sound):
    """All tokens of a step get the top tokens of its last position, the only one that was kept before there were drafts."""

    def _verify(self, work: Work, states: list[int]) -> Row:
        made = super()._verify(work, states)
        return replace(made, top=made.top[-1:] * len(made.top))


class ByTheFirst(Sound):
    """Chooses all tokens of a step by something of its first position."""

    def during(self, known: int) -> AbstractContextManager[Any]:
        """Return a context in which it does; the row has `known` tokens before the step."""
        raise NotImplementedError

    def _verify(self, work: Work, states: list[int]) -> Row:
        with self.during(len(work.row.tokens)):
            return super()._verify(work, states)


@mutant("one-uniform-a-step", "speculation.seeds")
class OneUniformAStep(ByTheFirst):
    """One random number per row and step (the shape of a batch without drafts)."""

    def during(self, known: int) -> AbstractContextManager[Any]:
        """Use the first position's number."""
        sound = formula.choose
        return patch.object(formula, "choose", lambda logprobs, how, position: sound(logprobs, how, known))


@mutant("penalties-without-drafts", "speculation.penalties")
class PenaltiesWithoutDrafts(ByTheFirst):
    """Penalties count the tokens before the step (TGI's speculation with n-grams and with Medusa)."""

    def during(self, known: int) -> AbstractContextManager[Any]:
        """Pass over the later tokens."""
        sound = formula.distribution

        def distribution(logits: Any, how: Any, tokens: Sequence[int], *others: Any) -> dict[int, float]:
            return sound(logits, how, tokens[:known], *others)

        return patch.object(formula, "distribution", distribution)


@mutant("mask-of-the-first", "speculation.masks")
class MaskOfTheFirst(ByTheFirst):
    """The first position's mask is applied to all (TGI's grammars with Medusa: dottxt-ai/outlines#845)."""

    def during(self, known: int) -> AbstractContextManager[Any]:
        """Ask for each mask, and keep the first."""
        kept: list[Any] = []

        def of_the_first(*arguments: Any) -> Any:
            kept.append(allowed_tokens(*arguments))
            return kept[0]

        return patch("tgi_core.backend.reference.allowed_tokens", of_the_first)


@mutant("source-told-drafts", "speculation.masks")
class SourceToldDrafts(Sound):
    """The mask source hears of the draft that was rejected, and its grammar is not rolled back."""

    def _verify(self, work: Work, states: list[int]) -> Row:
        made = super()._verify(work, states)
        if self._masks is not None and work.row.request.masked and made.fault is None and len(made.tokens) <= len(work.drafts):
            self._masks.fill((MaskRow(made.request_id, (work.drafts[len(made.tokens) - 1],)),))
        return made


@mutant("fault-not-reached", "speculation.mask-fault")
class FaultNotReached(Sound):
    """The masks of all positions are checked before any token is chosen: an empty one ends a row that would not have come there."""

    def _verify(self, work: Work, states: list[int]) -> Row:
        made = super()._verify(work, states)
        if self._masks is None or not work.row.request.masked or made.fault or len(made.tokens) > len(work.drafts):
            return made
        if any(self._masks.fill((MaskRow(made.request_id, made.tokens[-1:]),))):
            return made
        return replace(made, fault=RowFault(RowFaultKind.MASK, "the mask allows no token"))


@mutant("fault-loses-tokens", "speculation.mask-fault")
class FaultLosesTokens(Sound):
    """A row that fails at a later position returns nothing of what it made before."""

    def _verify(self, work: Work, states: list[int]) -> Row:
        made = super()._verify(work, states)
        return made if made.fault is None else replace(made, tokens=(), logprobs=(), top=())


@mutant("shortest-drafts-for-all", "speculation.beside")
class ShortestDraftsForAll(Cut):
    """A step has one number of drafts, its shortest row's: the drafts beyond it are passed over."""

    def _compute(self, launch: Launch) -> None:
        self._shortest = min((len(work.drafts) for work in launch.work), default=0)
        super()._compute(launch)

    def count(self, work: Work) -> int:
        """Return the shortest row's."""
        return self._shortest


@mutant("drafts-without-adapter", "speculation.adapters")
class DraftsWithoutAdapter(Sound):
    """The adapter is applied to one token per row, so that drafts run on the base model."""

    def _write_drafts(self, work: Work) -> list[int]:
        states = super()._write_drafts(work)
        return [reference.mix(state) for state in states] if work.row.request.adapter else states


@mutant("drafts-lost-when-joining", "speculation.join")
class DraftsLostWhenJoining(Cut):
    """A step with a prompt runs one token of every other row."""

    def _compute(self, launch: Launch) -> None:
        self._prompts = any(work.start < len(work.row.request.tokens) for work in launch.work)
        super()._compute(launch)

    def count(self, work: Work) -> int:
        """Return none beside a prompt."""
        return 0 if self._prompts else len(work.drafts)
