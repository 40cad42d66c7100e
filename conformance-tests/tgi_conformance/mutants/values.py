"""What rows return besides tokens, and what a session says of itself."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

from tgi_conformance.mutants.base import Mutant, Sound, add, mutant, opening
from tgi_core.backend import (
    BackendError,
    Capabilities,
    Capacity,
    Feature,
    InvalidModel,
    OpenOptions,
    Progress,
    Row,
    Rows,
    Stats,
    Step,
    TopToken,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend import sampling as formula
from tgi_core.backend.ledger import Work
from tgi_core.backend.reference import backend_open, toy_logits


@mutant("logprob-before-filters", "parity.sampled", "formula.filters")
class LogprobBeforeFilters(Sound):
    """The logprob of the model is returned where that of the distribution drawn from is meant."""

    def _sample(self, work: Work, state: int) -> dict[str, Any]:
        made = super()._sample(work, state)
        if made.get("logprobs") and work.row.request.sampling.do_sample:
            plain = formula.log_softmax(toy_logits(state, self._vocab_size))
            made["logprobs"] = (plain.get(made["tokens"][0], -20.0),)
        return made


class Rewritten(Sound):
    """Rows with something changed on the way out."""

    def rewrite(self, row: Row) -> Row:
        """One row."""
        return row

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """All of them."""
        found = super().rows(step)
        return replace(found, rows=tuple(map(self.rewrite, found.rows)))


@mutant("logprob-as-probability", "parity.logprobs")
class LogprobAsProbability(Rewritten):
    """Probabilities where logprobs are promised."""

    def rewrite(self, row: Row) -> Row:
        """exp of each."""
        return replace(row, logprobs=tuple(math.exp(value) for value in row.logprobs))


@mutant("logprob-of-row-before", "mates.wants", "parity.logprobs")
class LogprobOfRowBefore(Sound):
    """Logprobs gathered with an index that counts only the rows that ask for them."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Shifted by one row among those that ask."""
        found = super().rows(step)
        values = [row.logprobs for row in found.rows if row.logprobs]
        shifted = iter(values[-1:] + values[:-1])
        return replace(found, rows=tuple(replace(row, logprobs=next(shifted)) if row.logprobs else row for row in found.rows))


@mutant("wants-of-the-first", "mates.wants")
class WantsOfTheFirst(Rewritten):
    """Logprobs come for all rows or for none, as the first asks."""

    def rewrite(self, row: Row) -> Row:
        """Everybody gets some."""
        return replace(row, logprobs=row.logprobs or tuple(-1.0 for _ in row.tokens))


@mutant("top-unsorted", "parity.top", "mates.together")
class TopUnsorted(Rewritten):
    """Top tokens in token-id order."""

    def rewrite(self, row: Row) -> Row:
        """By id."""
        return replace(row, top=tuple(tuple(sorted(top, key=lambda item: item.id)) for top in row.top))


@mutant("top-one-short", "parity.top", "formula.top-tokens")
class TopOneShort(Rewritten):
    """n - 1 top tokens, since the chosen one is counted among them elsewhere (TGI counts it apart)."""

    def rewrite(self, row: Row) -> Row:
        """One less."""
        return replace(row, top=tuple(top[:-1] if len(top) > 1 else top for top in row.top))


@mutant("top-ids-shifted", "parity.top", "mates.together")
class TopIdsShifted(Rewritten):
    """The likeliest token is right, and the ids behind it are those of another row; their logprobs are in order."""

    _turn = 0

    def rewrite(self, row: Row) -> Row:
        """Other ones each time."""
        self._turn += 1
        shifted = (
            top[:1] + tuple(TopToken((t.id + self._turn) % self._vocab_size, t.logprob) for t in top[1:]) for top in row.top
        )
        return replace(row, top=tuple(shifted)) if len({t.id for top in row.top for t in top}) > 1 else row


@mutant("prompt-by-temperature", "parity.sampled")
class PromptByTemperature(Sound):
    """The logits of the prompt go through the row's temperature, which is for its next token alone."""

    def _run(self, work: Work) -> Row:
        row, how = super()._run(work), work.row.request.sampling
        scale = how.temperature if how.do_sample else 1.0
        cooled = tuple(value if value is None else value / scale for value in row.prompt_logprobs)
        return replace(row, prompt_logprobs=cooled)


@mutant("top-not-normal", "formula.top-tokens", "parity.top")
class TopNotNormal(Rewritten):
    """Top tokens with logits instead of logprobs."""

    def rewrite(self, row: Row) -> Row:
        """Shifted by a constant."""
        return replace(row, top=tuple(tuple(TopToken(item.id, item.logprob - 0.7) for item in top) for top in row.top))


@mutant("declares-top-n", "parity.top", "mates.together")
class DeclaresTopN(Rewritten):
    """A lie about a capability: top_n is declared and an empty list comes (Bowtie's `incorrectly_claims_draft7`)."""

    def rewrite(self, row: Row) -> Row:
        """Nothing."""
        return replace(row, top=())


@mutant("prompt-shifted", "parity.prompt")
class PromptShifted(Rewritten):
    """Prompt logprobs of each token itself instead of the next: the leading None is at the end."""

    def rewrite(self, row: Row) -> Row:
        """Rotated by one."""
        return replace(row, prompt_logprobs=row.prompt_logprobs[1:] + row.prompt_logprobs[:1])


@mutant("prompt-none-per-chunk", "chunks.tokens")
class PromptNonePerChunk(Rewritten):
    """Every chunk begins with the None that belongs to token 0."""

    def rewrite(self, row: Row) -> Row:
        """One too many."""
        again = row.prompt_logprobs and row.prompt_logprobs[0] is not None
        return replace(row, prompt_logprobs=(None, *row.prompt_logprobs) if again else row.prompt_logprobs)


@mutant("nan-logprob", "parity.logprobs")
class NanLogprob(Rewritten):
    """NaN reaches the client (vllm and TGI both shipped it)."""

    def rewrite(self, row: Row) -> Row:
        """For the first row of each step."""
        return replace(row, logprobs=tuple(math.nan for _ in row.logprobs))


@mutant("capabilities-change", "open.capabilities")
class CapabilitiesChange(Sound):
    """Features that are known only after warmup."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Fewer at first."""
        found = super().capabilities()
        return found if self._ledger is not None else replace(found, features=found.features - {Feature.TOP_N})


@mutant("no-vocabulary", "open.capabilities")
class NoVocabulary(Sound):
    """Numbers left at their defaults."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """No block size."""
        return replace(super().capabilities(), block_sizes=())

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """As ever."""
        return super().warmup(plan, progress)


@mutant("warmup-one-int", "open.promise", "open.first-step")
class WarmupOneInt(Sound):
    """TGI's Neuron backend: warmup returns one number."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Any:
        """The token limit."""
        return super().warmup(plan, progress).max_step_tokens


@mutant("promise-of-nothing", "open.promise")
class PromiseOfNothing(Sound):
    """A cache that does not hold one row of the length that is promised (TGI#1374: out of memory after warmup said that it fits)."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Longer rows than there are blocks for."""
        found = super().warmup(plan, progress)
        return replace(found, max_row_tokens=found.groups[0].num_blocks * found.groups[0].block_size + 1)


@mutant("plan-taken-literally", "open.partial-plan")
class PlanTakenLiterally(Sound):
    """A plan's None is used as a number (TGI's warmup returns other things when it is not given a limit)."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """A comparison with None."""
        if any(limit < 1 for limit in (plan.max_rows, plan.max_row_tokens, plan.max_step_tokens)):  # type: ignore[operator]
            raise ValueError("limits must be positive")
        return super().warmup(plan, progress)


@mutant("blocks-by-plan-only", "open.partial-plan")
class BlocksByPlanOnly(Sound):
    """The number of blocks is always given in the vendor's own tests, and never by a server, which wants what memory holds."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """None is used as a number."""
        if plan.num_blocks is None:
            raise TypeError("unsupported operand type(s) for *: 'NoneType' and 'int'")
        return super().warmup(plan, progress)


@mutant("block-size-undeclared", "open.partial-plan")
class BlockSizeUndeclared(Sound):
    """A default that is none of the sizes that are declared."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Where the plan leaves it open."""
        return super().warmup(replace(plan, block_size=plan.block_size or 12), progress)


@mutant("rows-longer-than-blocks", "open.block-sizes")
class RowsLongerThanBlocks(Sound):
    """The longest row is computed from blocks and block size with the wrong sign, and fits as long as blocks are large."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """A sum for a product."""
        promised = super().warmup(plan, progress)
        group = promised.groups[0]
        return replace(promised, max_row_tokens=min(plan.max_row_tokens or 128, group.num_blocks + group.block_size))


@mutant("block-size-its-own", "open.block-sizes")
class BlockSizeItsOwn(Sound):
    """Several block sizes are declared and one is used (vllm-ascend's 128 whatever was asked for)."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Always 16."""
        return super().warmup(replace(plan, block_size=16), progress)


@mutant("stats-stand-still", "open.stats")
class StatsStandStill(Sound):
    """Counters that nobody counts."""

    @hookimpl
    def stats(self) -> Stats:
        """Always none."""
        return replace(super().stats(), steps=0)


@mutant("memory-grows", "leaks.memory")
class MemoryGrows(Sound):
    """Buffers for results are kept: memory grows with every step."""

    @hookimpl
    def stats(self) -> Stats:
        """A little more each time."""
        found = super().stats()
        return replace(
            found, memory=tuple(replace(share, num_bytes=share.num_bytes + 64 * found.steps) for share in found.memory)
        )


@mutant("compiles-in-traffic", "leaks.compiles")
class CompilesInTraffic(Sound):
    """A shape that warmup did not meet is compiled when a request brings it (vllm's recompiles, optimum-habana's bucket misses)."""

    _shapes: set[int] = set()  # noqa: RUF012  replaced per session below

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """No shape is warmed."""
        self._shapes = set()
        return super().warmup(plan, progress)

    def _compute(self, launch: Any) -> None:
        self._shapes.add(len(launch.work))
        super()._compute(launch)

    @hookimpl
    def stats(self) -> Stats:
        """One per batch size."""
        return replace(super().stats(), compiles=len(self._shapes))


def _untyped_model(options: OpenOptions) -> object:
    try:
        return opening(Sound)(options)
    except InvalidModel as error:
        raise FileNotFoundError(str(error)) from error


def _nameless_model(options: OpenOptions) -> object:
    try:
        return opening(Sound)(options)
    except InvalidModel as error:
        raise InvalidModel("the model cannot be loaded") from error


def _ignores_ranks(options: OpenOptions) -> object:
    alone = replace(options, group=type(options.group)())
    return opening(Sound)(alone)


_counter = itertools.count()


def _second_open_fails(options: OpenOptions) -> object:
    backend_open(options)
    if next(_counter) % 4 == 3:
        raise BackendError("the device is held by a session that was closed")
    return opening(Sound)(options)


add(
    Mutant(
        "model-untyped",
        "A missing file is whatever the loader raises (every fork of TGI).",
        _untyped_model,
        ("open.invalid-model",),
    )
)
add(Mutant("model-nameless", "An error that does not say which file.", _nameless_model, ("open.invalid-model",)))
add(
    Mutant(
        "ranks-ignored",
        "A group of two ranks is opened as one, and each answers by itself.",
        _ignores_ranks,
        ("refusal.undeclared", "ranks.refusal"),
    )
)
add(Mutant("close-keeps-device", "A closed session holds the device for a while.", _second_open_fails, ("faults.reopen",)))
