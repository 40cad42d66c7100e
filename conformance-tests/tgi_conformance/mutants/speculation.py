"""Drafts: what is accepted, and with which random number, penalties and mask."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import MaskRow, Row, RowFault, RowFaultKind, reference
from tgi_core.backend import sampling as formula
from tgi_core.backend.batch_tracker import LaunchedStep, RowInput
from tgi_core.backend.masking import allowed_tokens


class Cut(Sound):
    """Runs only some of a row's drafts, but reports that it ran all."""

    def count(self, row_input: RowInput) -> int:
        """Return how many drafts to run."""
        return len(row_input.drafts)

    def _verify(self, row_input: RowInput, states: list[int]) -> Row:
        count = self.count(row_input)
        made = super()._verify(replace(row_input, drafts=row_input.drafts[:count]), states[: count + 1])
        return replace(made, drafted=len(row_input.drafts))


@mutant("no-bonus-token", "speculation.accept")
class NoBonusToken(Cut):
    """No token follows the last draft: its logits are computed but discarded (several early implementations)."""

    def count(self, row_input: RowInput) -> int:
        """Treat the last draft as a bonus token."""
        return len(row_input.drafts) - 1


@mutant("one-too-many-kept", "speculation.reject", "speculation.beside")
class OneTooManyKept(Sound):
    """The token after the first that is not the draft is kept too: it follows a draft that the row does not have."""

    def _verify(self, row_input: RowInput, states: list[int]) -> Row:
        made = super()._verify(row_input, states)
        if made.fault is not None or len(made.tokens) > len(row_input.drafts):
            return made
        more = self._sample(row_input, states[len(made.tokens)])
        row_input.row.accept(())
        return replace(
            made,
            tokens=made.tokens + more["tokens"],
            logprobs=made.logprobs + more["logprobs"],
            top=made.top + more["top"],
        )


@mutant("draft-for-token", "speculation.reject", "speculation.random")
class DraftForToken(Sound):
    """If a token is not the draft, the draft is returned instead (an index into the wrong one of two arrays)."""

    def _verify(self, row_input: RowInput, states: list[int]) -> Row:
        made = super()._verify(row_input, states)
        if made.fault is None and len(made.tokens) <= len(row_input.drafts):
            made = replace(made, tokens=row_input.drafts[: len(made.tokens)])
            row_input.row.tokens[-1] = made.tokens[-1]
        return made


@mutant("drafts-unchecked", "speculation.reject", "speculation.random")
class DraftsUnchecked(Sound):
    """All drafts are kept, whatever the model says: correct as long as drafts are right."""

    def _verify(self, row_input: RowInput, states: list[int]) -> Row:
        known = len(row_input.row.tokens)
        made = super()._verify(row_input, states)
        if made.fault is None and len(made.tokens) <= len(row_input.drafts):
            extra = 1 + len(row_input.drafts) - len(made.tokens)
            row_input.row.tokens[known:] = [*row_input.drafts, made.tokens[-1]]
            row_input.row.accept(())
            made = replace(
                made,
                tokens=(*row_input.drafts, made.tokens[-1]),
                logprobs=made.logprobs + made.logprobs[-1:] * extra,
                top=made.top + made.top[-1:] * extra,
            )
        return made


@mutant("drafted-is-accepted", "speculation.reject")
class DraftedIsAccepted(Sound):
    """`drafted` counts the drafts that were kept, so that no rate of acceptance is ever below 1."""

    def _verify(self, row_input: RowInput, states: list[int]) -> Row:
        made = super()._verify(row_input, states)
        return replace(made, drafted=max(0, len(made.tokens) - 1))


@mutant("logprobs-shifted", "speculation.accept")
class LogprobsShifted(Sound):
    """Each token of a step has the logprob of the one before it."""

    def _verify(self, row_input: RowInput, states: list[int]) -> Row:
        made = super()._verify(row_input, states)
        return replace(made, logprobs=(*made.logprobs[:1], *made.logprobs[:-1]))


@mutant("top-of-the-last", "speculation.accept")
class TopOfTheLast(Sound):
    """All tokens of a step get the top tokens of its last position, the only one that was kept before there were drafts."""

    def _verify(self, row_input: RowInput, states: list[int]) -> Row:
        made = super()._verify(row_input, states)
        return replace(made, top=made.top[-1:] * len(made.top))


class ByTheFirst(Sound):
    """Chooses all tokens of a step with something from its first position."""

    def during(self, known: int) -> AbstractContextManager[Any]:
        """Return a context in which it does; the row has `known` tokens before the step."""
        raise NotImplementedError

    def _verify(self, row_input: RowInput, states: list[int]) -> Row:
        with self.during(len(row_input.row.tokens)):
            return super()._verify(row_input, states)


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
        """Ignore the later tokens."""
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
    """The mask source receives the rejected draft, and its grammar is not rolled back."""

    def _verify(self, row_input: RowInput, states: list[int]) -> Row:
        made = super()._verify(row_input, states)
        if (
            self._masks is not None
            and row_input.row.request.masked
            and made.fault is None
            and len(made.tokens) <= len(row_input.drafts)
        ):
            self._masks.fill((MaskRow(made.request_id, (row_input.drafts[len(made.tokens) - 1],)),))
        return made


@mutant("fault-not-reached", "speculation.mask-fault")
class FaultNotReached(Sound):
    """The masks of all positions are checked before any token is chosen: an empty one ends a row that would not have got that far."""

    def _verify(self, row_input: RowInput, states: list[int]) -> Row:
        made = super()._verify(row_input, states)
        if self._masks is None or not row_input.row.request.masked or made.fault or len(made.tokens) > len(row_input.drafts):
            return made
        if any(self._masks.fill((MaskRow(made.request_id, made.tokens[-1:]),))):
            return made
        return replace(made, fault=RowFault(RowFaultKind.MASK, "the mask allows no token"))


@mutant("fault-loses-tokens", "speculation.mask-fault")
class FaultLosesTokens(Sound):
    """A row that fails at a later position returns none of its earlier tokens."""

    def _verify(self, row_input: RowInput, states: list[int]) -> Row:
        made = super()._verify(row_input, states)
        return made if made.fault is None else replace(made, tokens=(), logprobs=(), top=())


@mutant("shortest-drafts-for-all", "speculation.beside")
class ShortestDraftsForAll(Cut):
    """A step has one number of drafts, that of the row with the fewest: further drafts are ignored."""

    def _compute(self, launch: LaunchedStep) -> None:
        self._shortest = min((len(row_input.drafts) for row_input in launch.row_inputs), default=0)
        super()._compute(launch)

    def count(self, row_input: RowInput) -> int:
        """Return the smallest number."""
        return self._shortest


@mutant("drafts-without-adapter", "speculation.adapters")
class DraftsWithoutAdapter(Sound):
    """The adapter is applied to one token per row, so that drafts run on the base model."""

    def _write_drafts(self, row_input: RowInput) -> list[int]:
        states = super()._write_drafts(row_input)
        return [reference.mix(state) for state in states] if row_input.row.request.adapter else states


@mutant("drafts-lost-when-joining", "speculation.join")
class DraftsLostWhenJoining(Cut):
    """A step with a prompt runs one token of every other row."""

    def _compute(self, launch: LaunchedStep) -> None:
        self._prompts = any(row_input.start < len(row_input.row.request.tokens) for row_input in launch.row_inputs)
        super()._compute(launch)

    def count(self, row_input: RowInput) -> int:
        """Return none next to a prompt."""
        return 0 if self._prompts else len(row_input.drafts)
