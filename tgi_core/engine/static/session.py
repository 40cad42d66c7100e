"""Opens a model on a static device, one step ahead of the reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import cast

from tgi_core.backend import Capacity, InvalidModel, Kernel, OpenOptions, Progress, Unsupported, WarmupPlan
from tgi_core.engine.ahead.session import AheadSession
from tgi_core.engine.base_session import BaseSession
from tgi_core.engine.collectives import Collectives, open_collectives
from tgi_core.engine.decoder.partition import RankWeights
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.open_model import NewRunner, load_table
from tgi_core.engine.rank_session import RankSession
from tgi_core.engine.speculators.base import no_proposals
from tgi_core.engine.static.device import StaticKit
from tgi_core.engine.static.runner import StaticRunner
from tgi_core.engine.static.steps import StaticSteps
from tgi_core.engine.static.warmup import warm_up

Warm = Callable[[WarmupPlan, Progress], tuple[StaticSteps, Capacity]]
_PROGRAMS = Kernel("programs", "one per shape", "none is compiled in traffic")
_NO_HIDDEN = "compiled programs return logits only"


class StaticSession(AheadSession):
    """The session over a whole model on a static device."""

    def __init__(self, runner: StaticRunner, warm: Warm, options: OpenOptions) -> None:
        kernels = *runner.kit.choices(), *no_proposals(options, _NO_HIDDEN)
        super().__init__(runner, runner.device, options.masks, (), kernels, _PROGRAMS)
        self._warm = warm

    def _warm_up(self, plan: WarmupPlan, progress: Progress) -> tuple[StaticSteps, Capacity]:
        return self._warm(plan, progress)


class StaticRankSession(RankSession):
    """One rank's session among several, in lock step with the others': rank 0 samples."""

    def __init__(self, runner: StaticRunner, warm: Warm, options: OpenOptions, collectives: Collectives) -> None:
        kernels = *runner.kit.choices(), _PROGRAMS, *no_proposals(options, _NO_HIDDEN)
        super().__init__(runner, runner.shape, options.masks, collectives, kernels)
        self._warm = warm
        self._static_steps: StaticSteps | None = None

    def _reserve(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        self._static_steps, capacity = self._warm(plan, progress)
        return replace(capacity, in_flight=1)

    def _compiles(self) -> int:
        return 0 if self._static_steps is None else self._static_steps.compiles


def open_static(options: OpenOptions, kit: StaticKit, progress: Progress) -> BaseSession:
    """Load a model, or this rank's part of it. Raises InvalidModel for one that no decoder table describes, Unsupported, PeerLost."""
    if options.adapters:
        raise Unsupported("--lora-adapters: static devices run decoders from their tables, which hold no adapters; leave it out")
    if options.group.world == 1:
        return StaticSession(*_loaded(options, kit, progress, kit.table_runner), options)
    collectives = open_collectives(options.group, kit.collectives, kit.device)

    def make(weights: DecoderWeights, progress: Progress) -> StaticRunner:
        runner = StaticRunner(kit, RankWeights(weights, options.group), progress, collectives)
        collectives.meet()  # reading takes some ranks longer than others, and the device's own waits are not made for that
        return runner

    try:
        return StaticRankSession(*_loaded(options, kit, progress, make), options, collectives)
    except BaseException:
        collectives.close()
        raise


def _loaded(options: OpenOptions, kit: StaticKit, progress: Progress, make: NewRunner) -> tuple[StaticRunner, Warm]:
    """A runner with its weights, and what warms it up."""
    with _tables_only():
        runner, check = load_table(options, kit, progress, make)
    static = cast(StaticRunner, runner)
    return static, partial(warm_up, static, _tables_only()(check), options.compile_cache)


@contextmanager
def _tables_only() -> Iterator[None]:
    try:
        yield
    except UnsupportedFamily as reason:
        raise InvalidModel(f"static devices run decoder tables; this model is not one: {reason}") from reason
