"""What rows return besides tokens, and what a session declares."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

from tgi_conformance.mutants.base import Mutant, Sound, add, mutant, opening
from tgi_core.backend import (
    BackendError,
    Capabilities,
    Capacity,
    Closed,
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
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.backend.reference import toy_logits


@mutant("logprob-before-filters", "parity.sampled", "formula.filters")
class LogprobBeforeFilters(Sound):
    """Logprobs come from the model instead of the distribution that was drawn from."""

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        made = super()._sample(row_input, state)
        if made.get("logprobs") and row_input.row.request.sampling.do_sample:
            plain = formula.log_softmax(toy_logits(state, self._vocab_size))
            made["logprobs"] = (plain.get(made["tokens"][0], -20.0),)
        return made


class Rewritten(Sound):
    """Changes rows on the way out."""

    def rewrite(self, row: Row) -> Row:
        """Return one row, changed."""
        return row

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Return all rows, changed."""
        found = super().rows(step)
        return replace(found, rows=tuple(map(self.rewrite, found.rows)))


@mutant("logprob-as-probability", "parity.logprobs")
class LogprobAsProbability(Rewritten):
    """Probabilities are returned instead of logprobs."""

    def rewrite(self, row: Row) -> Row:
        """Exponentiate each logprob."""
        return replace(row, logprobs=tuple(math.exp(value) for value in row.logprobs))


@mutant("logprob-of-row-before", "mates.wants", "parity.logprobs")
class LogprobOfRowBefore(Sound):
    """Logprobs are gathered with an index that counts only the rows that ask for them."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Shift logprobs by one row among those that ask."""
        found = super().rows(step)
        values = [row.logprobs for row in found.rows if row.logprobs]
        shifted = iter(values[-1:] + values[:-1])
        return replace(found, rows=tuple(replace(row, logprobs=next(shifted)) if row.logprobs else row for row in found.rows))


@mutant("wants-of-the-first", "mates.wants")
class WantsOfTheFirst(Rewritten):
    """Logprobs come for all rows or for none, as the first row asks."""

    def rewrite(self, row: Row) -> Row:
        """Give every row logprobs."""
        return replace(row, logprobs=row.logprobs or tuple(-1.0 for _ in row.tokens))


@mutant("top-unsorted", "parity.top", "mates.together")
class TopUnsorted(Rewritten):
    """Top tokens come in token-id order."""

    def rewrite(self, row: Row) -> Row:
        """Sort by id."""
        return replace(row, top=tuple(tuple(sorted(top, key=lambda item: item.id)) for top in row.top))


@mutant("top-one-short", "parity.top", "formula.top-tokens")
class TopOneShort(Rewritten):
    """There are n - 1 top tokens, since the chosen one is counted among them elsewhere (TGI counts it separately)."""

    def rewrite(self, row: Row) -> Row:
        """Drop the last one."""
        return replace(row, top=tuple(top[:-1] if len(top) > 1 else top for top in row.top))


@mutant("top-ids-shifted", "parity.top", "mates.together")
class TopIdsShifted(Rewritten):
    """The most likely token is correct, but the ids after it are another row's; their logprobs are in order."""

    _turn = 0

    def rewrite(self, row: Row) -> Row:
        """Use different ids each time."""
        self._turn += 1
        shifted = (
            top[:1] + tuple(TopToken((t.id + self._turn) % self._vocab_size, t.logprob) for t in top[1:]) for top in row.top
        )
        return replace(row, top=tuple(shifted)) if len({t.id for top in row.top for t in top}) > 1 else row


@mutant("prompt-by-temperature", "parity.sampled")
class PromptByTemperature(Sound):
    """The prompt's logits are divided by the row's temperature, which applies only to its next token."""

    def _run(self, row_input: RowInput) -> Row:
        row, how = super()._run(row_input), row_input.row.request.sampling
        scale = how.temperature if how.do_sample else 1.0
        cooled = tuple(value if value is None else value / scale for value in row.prompt_logprobs)
        return replace(row, prompt_logprobs=cooled)


@mutant("top-not-normal", "formula.top-tokens", "parity.top")
class TopNotNormal(Rewritten):
    """Top tokens come with logits instead of logprobs."""

    def rewrite(self, row: Row) -> Row:
        """Shift them by a constant."""
        return replace(row, top=tuple(tuple(TopToken(item.id, item.logprob - 0.7) for item in top) for top in row.top))


@mutant("declares-top-n", "parity.top", "mates.together")
class DeclaresTopN(Rewritten):
    """A false capability: top_n is declared, but the list is empty (Bowtie's `incorrectly_claims_draft7`)."""

    def rewrite(self, row: Row) -> Row:
        """Return no top tokens."""
        return replace(row, top=())


@mutant("prompt-shifted", "parity.prompt")
class PromptShifted(Rewritten):
    """Each prompt logprob is one place too early: the leading None is at the end."""

    def rewrite(self, row: Row) -> Row:
        """Rotate them by one."""
        return replace(row, prompt_logprobs=row.prompt_logprobs[1:] + row.prompt_logprobs[:1])


@mutant("prompt-none-per-chunk", "chunks.tokens")
class PromptNonePerChunk(Rewritten):
    """Every chunk begins with the None that belongs to token 0."""

    def rewrite(self, row: Row) -> Row:
        """Add a None."""
        again = row.prompt_logprobs and row.prompt_logprobs[0] is not None
        return replace(row, prompt_logprobs=(None, *row.prompt_logprobs) if again else row.prompt_logprobs)


@mutant("nan-logprob", "parity.logprobs")
class NanLogprob(Rewritten):
    """NaN reaches the client (vllm and TGI both shipped it)."""

    def rewrite(self, row: Row) -> Row:
        """Return NaN for the first row of each step."""
        return replace(row, logprobs=tuple(math.nan for _ in row.logprobs))


@mutant("capabilities-change", "open.capabilities")
class CapabilitiesChange(Sound):
    """Features are known only after warmup."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare fewer at first."""
        found = super().capabilities()
        return found if self._tracker is not None else replace(found, features=found.features - {Feature.TOP_N})


@mutant("no-vocabulary", "open.capabilities")
class NoVocabulary(Sound):
    """Numbers are left at their defaults."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare no vocabulary."""
        return replace(super().capabilities(), vocab_size=0)


@mutant("warmup-one-int", "open.promise", "open.first-step")
class WarmupOneInt(Sound):
    """TGI's Neuron backend: warmup returns one number."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Any:
        """Return the token limit."""
        return super().warmup(plan, progress).max_step_tokens


@mutant("promise-of-nothing", "open.promise")
class PromiseOfNothing(Sound):
    """The cache does not hold one row of the promised length (TGI#1374: out of memory after warmup said that it fits)."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Promise longer rows than there are blocks for."""
        found = super().warmup(plan, progress)
        return replace(found, max_row_tokens=found.groups[0].num_blocks * found.groups[0].block_size + 1)


@mutant("plan-taken-literally", "open.partial-plan")
class PlanTakenLiterally(Sound):
    """A plan's None is used as a number (TGI's warmup returns other things if it is not given a limit)."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Compare with None."""
        if any(limit < 1 for limit in (plan.max_rows, plan.max_row_tokens, plan.max_step_tokens)):  # type: ignore[operator]
            raise ValueError("limits must be positive")
        return super().warmup(plan, progress)


@mutant("blocks-by-plan-only", "open.partial-plan")
class BlocksByPlanOnly(Sound):
    """The number of blocks is always given in the vendor's own tests, but never by a server, which wants as many as fit in memory."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Use None as a number."""
        if plan.num_blocks is None:
            raise TypeError("unsupported operand type(s) for *: 'NoneType' and 'int'")
        return super().warmup(plan, progress)


@mutant("block-size-undeclared", "open.partial-plan")
class BlockSizeUndeclared(Sound):
    """The default block size is not among the declared ones."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Use it where the plan leaves the size open."""
        return super().warmup(replace(plan, block_size=plan.block_size or 12), progress)


@mutant("rows-longer-than-blocks", "open.block-sizes")
class RowsLongerThanBlocks(Sound):
    """The longest row is calculated wrongly from blocks and block size, and fits as long as blocks are large."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Add where it should multiply."""
        promised = super().warmup(plan, progress)
        group = promised.groups[0]
        return replace(promised, max_row_tokens=min(plan.max_row_tokens or 128, group.num_blocks + group.block_size))


@mutant("block-size-its-own", "open.block-sizes")
class BlockSizeItsOwn(Sound):
    """Several block sizes are declared but only one is used (vllm-ascend's 128 whatever was requested)."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Always use 16."""
        return super().warmup(replace(plan, block_size=16), progress)


@mutant("stats-stand-still", "open.stats")
class StatsStandStill(Sound):
    """Counters are never incremented."""

    @hookimpl
    def stats(self) -> Stats:
        """Return zeros."""
        return replace(super().stats(), steps=0)


@mutant("memory-grows", "leaks.memory")
class MemoryGrows(Sound):
    """Result buffers are kept: memory grows with every step."""

    @hookimpl
    def stats(self) -> Stats:
        """Report a little more each time."""
        found = super().stats()
        return replace(
            found, memory=tuple(replace(share, num_bytes=share.num_bytes + 64 * found.steps) for share in found.memory)
        )


@mutant("compiles-in-traffic", "leaks.compiles")
class CompilesInTraffic(Sound):
    """A shape that warmup did not cover is compiled when a request needs it (vllm's recompiles, optimum-habana's bucket misses)."""

    _shapes: set[int] = set()  # noqa: RUF012  replaced per session below

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm up no shapes."""
        self._shapes = set()
        return super().warmup(plan, progress)

    def _compute(self, launch: Any) -> None:
        self._shapes.add(len(launch.row_inputs))
        super()._compute(launch)

    @hookimpl
    def stats(self) -> Stats:
        """Count one compilation per batch size."""
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


class _KeepsDevice(Sound):
    """Its close does not release the device before something else has tried to open it."""

    held: ClassVar[bool] = False

    @hookimpl
    def close(self) -> Closed:
        """Keep it."""
        _KeepsDevice.held = True
        return super().close()


def _open_after_close_fails(options: OpenOptions) -> object:
    held, _KeepsDevice.held = _KeepsDevice.held, False
    if held:
        raise BackendError("the device is held by a session that was closed")
    return opening(_KeepsDevice)(options)


add(
    Mutant(
        "model-untyped",
        "A missing file raises whatever the loader raises (every fork of TGI).",
        _untyped_model,
        ("open.invalid-model",),
    )
)
add(Mutant("model-nameless", "An error that does not name the file.", _nameless_model, ("open.invalid-model",)))
add(
    Mutant(
        "ranks-ignored",
        "A group of two ranks is opened as one rank each, which answer separately.",
        _ignores_ranks,
        ("refusal.undeclared", "ranks.refusal"),
    )
)
add(Mutant("close-keeps-device", "A closed session holds the device for a while.", _open_after_close_fails, ("faults.reopen",)))
