"""Opening a session: what it declares, which limits it promises, and its first step."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from tgi_conformance.clause import clause
from tgi_conformance.fields import a_later_field
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.session_setup import Setup
from tgi_conformance.target import close, small_plan
from tgi_conformance.verdict import Level, Violation
from tgi_core.backend import (
    BackendError,
    CacheKind,
    Capabilities,
    Capacity,
    InvalidModel,
    OpenOptions,
    OutOfMemory,
    WarmupPlan,
)

_SHARE = 0.02
"""Fraction of memory that a cache may fill here; other processes use the machine too."""


@clause(
    "open.capabilities",
    "A session declares its capabilities; they never change, and their numbers make sense.",
    Level.L1,
    essential=True,
)
def capabilities(scene: Scene) -> None:
    """Ask before and after warmup."""
    lent = scene.play(Setup()).lent
    if lent.capabilities != lent.declared:
        raise Violation("constant", f"capabilities changed: {lent.declared}, then {lent.capabilities}")
    _sensible(lent.declared)


def _sensible(declared: Capabilities) -> None:
    if declared.vocab_size < 2 or declared.max_positions < 1:
        raise Violation("range", f"impossible vocab_size {declared.vocab_size} or max_positions {declared.max_positions}")
    if any(size < 1 for size in declared.block_sizes):
        raise Violation("range", f"impossible block sizes {declared.block_sizes}")


@clause(
    "open.fields",
    "A session names the sampling fields it honours one by one, so it does not declare those a later contract adds.",
    Level.L1,
    since=(1, 2),
)
def fields(scene: Scene) -> None:
    """Open a session while the contract has an extra field."""
    with a_later_field() as later:
        session = scene.opened(scene.target.session)
        try:
            declared = session.capabilities().sampling
        finally:
            close(session)
    if later in declared:
        raise Violation(
            "fields", "it declares every member of SamplingField, even one added by a later contract: name the fields it honours"
        )


@clause(
    "open.promise",
    "Warmup reports limits that admit at least one row of the reported length.",
    Level.L1,
    essential=True,
)
def promise(scene: Scene) -> None:
    """With the suite's small plan, whose cache any device can hold."""
    stage = scene.stage()
    _kept(stage.capacity)
    _decided(stage)
    _as_large_as_asked(stage.capacity, small_plan(scene.declared[0].block_sizes))


def _kept(promised: Capacity) -> None:
    limits = (promised.max_rows, promised.max_row_tokens, promised.max_step_tokens, promised.max_prefill_rows, promised.in_flight)
    if not all(type(limit) is int for limit in limits):
        raise Violation("range", f"a promised limit is not an integer: {promised}")
    if min(limits) < 1 or promised.draft < 0 or promised.compiles < 0 or not promised.groups:
        raise Violation("range", f"a promised limit is too small to be useful: {promised}")
    for group in promised.groups:
        if group.block_size < 1 or group.num_blocks < 1:
            raise Violation("range", f"an empty cache group: {group}")
        if group.kind is CacheKind.FULL and group.num_blocks * group.block_size < promised.max_row_tokens:
            raise Violation(
                "range", f"{group.num_blocks} blocks of {group.block_size} do not hold a row of {promised.max_row_tokens}"
            )

    if list(promised.takes) != sorted({*promised.takes}):
        raise Violation("range", f"takes must be in ascending order, each of them once: {promised.takes}")
    if promised.takes and not 1 <= promised.takes[0] <= promised.takes[-1] <= promised.max_step_tokens:
        raise Violation("range", f"takes must be from 1 to max_step_tokens {promised.max_step_tokens}: {promised.takes}")


def _decided(stage: Stage) -> None:
    """Check that blocks whose size only warm-up decides hold a whole row. Raises Violation."""
    longest = stage.capacity.max_row_tokens
    for group in stage.capacity.groups:
        if group.kind is CacheKind.FULL and not stage.capabilities.block_sizes and group.block_size < longest:
            raise Violation(
                "range",
                f"no block sizes are declared, so a block must hold a row of {longest} tokens; blocks of {group.block_size} are promised",
            )


def _as_large_as_asked(promised: Capacity, plan: WarmupPlan) -> None:
    """Check that the cache holds as many tokens as the plan's blocks, whatever the promised block size.

    It may hold half as many, and at most one row more. Raises Violation.
    """
    if plan.num_blocks is None or plan.block_size is None:
        return
    asked = plan.num_blocks * plan.block_size
    for group in promised.groups:
        held = group.num_blocks * group.block_size
        if group.kind is not CacheKind.FULL or group.block_size == plan.block_size:  # more blocks than requested do no harm
            continue
        if group.block_size >= promised.max_row_tokens:  # one block holds a whole row, as long as rows may be
            continue
        if not asked // 2 <= held <= asked + promised.max_row_tokens:
            raise Violation(
                "range",
                f"{plan.num_blocks} blocks of {plan.block_size} were requested, {asked} tokens; {group.num_blocks} blocks of "
                f"{group.block_size} are promised, {held} tokens",
            )


@clause(
    "open.partial-plan",
    "The backend chooses any limit the plan leaves open, and reports a short row length when the cache is small.",
    Level.L1,
)
def partial_plan(scene: Scene) -> None:
    """Leave two limits open, then two others, then the row length with only two blocks, then the number of blocks."""
    plan = small_plan(scene.declared[0].block_sizes)
    _works(scene.stage(replace(plan, max_rows=None, block_size=None)))
    _works(scene.stage(replace(plan, max_row_tokens=None, max_step_tokens=None)))
    _works(scene.stage(replace(plan, num_blocks=2, max_rows=2, max_row_tokens=None)))
    _fills_memory(scene, replace(plan, num_blocks=None))


def _fills_memory(scene: Scene, plan: WarmupPlan) -> None:
    """Let the cache fill a small share of memory, as a server does; it is no violation if none is left."""
    target = scene.target
    options = OpenOptions(str(target.model), target.dtype, memory_fraction=_SHARE)
    session = scene.opened(lambda: target.wrapped(target.open(options)))
    try:
        _kept(target.warm(session, plan))
    except OutOfMemory:
        scene.situations["no memory for blocks"] += 1
    finally:
        close(session)


def _works(stage: Stage) -> None:
    _kept(stage.capacity)
    _decided(stage)
    for group in stage.capacity.groups:
        whole_rows = group.block_size >= stage.capacity.max_row_tokens  # such a block is as long as the plan lets rows be
        if group.kind is CacheKind.FULL and not whole_rows and group.block_size not in stage.capabilities.block_sizes:
            raise Violation(
                "range", f"blocks of {group.block_size} are promised, but only {stage.capabilities.block_sizes} are declared"
            )
    if stage.capacity.max_row_tokens >= 4:
        stage.decode(stage.start(stage.request(stage.prompts[1])))


@clause("open.block-sizes", "A plan can request every declared block size, and gets it.", Level.L1)
def block_sizes(scene: Scene) -> None:
    """The six smallest, with two blocks each: the promised row fits in them, and a row can run.

    Rows in blocks of the size that all other clauses use run there. Where none is declared, a requested size is ignored.
    """
    declared, promised = scene.declared
    if not declared.block_sizes:
        _works(scene.stage(replace(small_plan(()), block_size=3)))
    usual = small_plan(declared.block_sizes).block_size
    for size in sorted(declared.block_sizes)[:6]:
        if size == usual:
            _in_blocks_of(size, promised)
            continue
        stage = scene.stage(WarmupPlan(2, None, 2 * size, num_blocks=2, block_size=size))
        _in_blocks_of(size, stage.capacity)
        _kept(stage.capacity)
        stage.decode(stage.start(stage.request((4,))))


def _in_blocks_of(size: int, promised: Capacity) -> None:
    group = promised.groups[0]
    whole_rows = group.block_size >= promised.max_row_tokens
    if group.kind is CacheKind.FULL and not whole_rows and group.block_size != size:
        raise Violation("range", f"declared blocks of {size} were requested, but blocks of {group.block_size} are promised")


@clause("open.first-step", "A prompt that runs in one step generates one token and a live batch.", Level.L1, essential=True)
def first_step(scene: Scene) -> None:
    """One request, then one more token."""
    stage = scene.stage()
    stage.decode(stage.start(stage.request(stage.prompts[0])))


@clause("open.invalid-model", "A missing or damaged model raises an InvalidModel that names the file.", Level.L1)
def invalid_model(scene: Scene) -> None:
    """An empty directory, and a config.json that is not JSON."""
    with tempfile.TemporaryDirectory() as folder:
        _refuses_to_open(scene, Path(folder))
        (Path(folder) / "config.json").write_text("{not json")
        _refuses_to_open(scene, Path(folder))


def _refuses_to_open(scene: Scene, model: Path) -> None:
    try:
        scene.opened(lambda: scene.target.open(OpenOptions(str(model), dtype=scene.target.dtype)))
    except InvalidModel as error:
        if "config.json" not in str(error) and str(model) not in str(error):
            raise Violation("message", f"the message names neither config.json nor the folder: {error}") from error
        return
    except BackendError as error:
        raise Violation("refusal", f"it raised {type(error).__name__}: {error}") from error
    except Exception as error:
        raise Violation("refusal", f"it raised {type(error).__name__}, which is not an error of the contract: {error}") from error
    raise Violation("refusal", "it opened")


@clause("open.stats", "Stats count the steps and never go backwards.", Level.L1)
def stats(scene: Scene) -> None:
    """After three steps."""
    stage = scene.stage()
    session = stage.play.session
    before = session.stats().steps
    stage.decode(stage.start(stage.request(stage.prompts[0])), steps=2)
    after = session.stats().steps
    if after - before != 3:
        raise Violation("stats", f"three steps were read and stats went from {before} to {after}")
