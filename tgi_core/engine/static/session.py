"""Opens a model on a static device, one step ahead of the reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from tgi_core.backend import (
    Capacity,
    InvalidModel,
    Kernel,
    MaskSource,
    OpenOptions,
    Progress,
    Stats,
    Unsupported,
    WarmupPlan,
    hookimpl,
)
from tgi_core.engine.ahead.device import QueuedDevice
from tgi_core.engine.ahead.session import AheadSession
from tgi_core.engine.ahead.steps import EnqueuesSteps
from tgi_core.engine.base_session import BaseSession
from tgi_core.engine.collectives import Collectives, open_collectives
from tgi_core.engine.decoder.partition import RankWeights
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.open_model import open_table
from tgi_core.engine.rank_session import RankSession
from tgi_core.engine.static.device import StaticKit
from tgi_core.engine.static.runner import StaticRunner
from tgi_core.engine.static.warming import warmed


class StaticSession(AheadSession):
    """One rank's session over one model on a static device."""

    def __init__(self, runner: StaticRunner, kit: StaticKit, masks: MaskSource | None, compile_cache: str = "") -> None:
        device = QueuedDevice(kit, runner.queue, runner.shape)
        super().__init__(
            runner, device, masks, (), kit.choices(), Kernel("programs", "one per shape", "none is compiled in traffic")
        )
        self._kit, self._static_runner, self._compile_cache = kit, runner, compile_cache

    def _warmed(self, plan: WarmupPlan, progress: Progress) -> tuple[EnqueuesSteps, Capacity]:
        return warmed(self._device, self._kit, self._static_runner, plan, self._compile_cache, progress)


class StaticRankSession(RankSession):
    """One rank's session among several, in lock step with the others': rank 0 samples."""

    def __init__(self, runner: StaticRunner, kit: StaticKit, options: OpenOptions, collectives: Collectives) -> None:
        super().__init__(runner, runner.shape, options.masks, collectives, kit.choices())
        self._kit, self._static_runner, self._compile_cache = kit, runner, options.compile_cache
        self._compiles: Callable[[], int] = int

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Compile every program. Raises InvalidRequest on a second call or an impossible plan, OutOfMemory."""
        self._check_plan(plan)
        device = QueuedDevice(self._kit, self._static_runner.queue, self._static_runner.shape)
        steps, capacity = warmed(device, self._kit, self._static_runner, plan, self._compile_cache, progress)
        self._compiles = lambda: steps.compiles
        return self._promise(replace(capacity, in_flight=1))

    @hookimpl
    def stats(self) -> Stats:
        """Counters since open; `compiles` are the compiler's own."""
        return Stats(self._steps, self._compiles(), self._capacity.memory if self._capacity else ())


def open_static(options: OpenOptions, kit: StaticKit, progress: Progress) -> BaseSession:
    """Load a model, or this rank's part of it. Raises InvalidModel for one that no decoder table describes, Unsupported, PeerLost."""
    if options.adapters:
        raise Unsupported("--lora-adapters: static devices run decoders from their tables, which hold no adapters; leave it out")
    try:
        if options.group.world == 1:
            runner = cast(StaticRunner, open_table(options, kit, progress))
            return StaticSession(runner, kit, options.masks, options.compile_cache)
        return _open_rank(options, kit, progress)
    except UnsupportedFamily as reason:
        raise InvalidModel(f"static devices run decoder tables; this model is not one: {reason}") from reason


def _open_rank(options: OpenOptions, kit: StaticKit, progress: Progress) -> StaticRankSession:
    collectives = open_collectives(options.group, kit.collectives, kit.device)

    def make(weights: DecoderWeights, progress: Progress) -> StaticRunner:
        return StaticRunner(kit, RankWeights(weights, options.group), progress, collectives)

    try:
        return StaticRankSession(cast(StaticRunner, open_table(options, kit, progress, make)), kit, options, collectives)
    except BaseException:
        collectives.close()
        raise
