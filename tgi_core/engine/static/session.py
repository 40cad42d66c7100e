"""Opens a model on a static device: one step ahead of the reader, or in lock step with other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import cast

from tgi_core.backend import Capacity, InvalidModel, Kernel, OpenOptions, Progress, Unsupported, WarmupPlan
from tgi_core.engine.ahead.session import AheadSession, Warm
from tgi_core.engine.base_session import BaseSession
from tgi_core.engine.collectives import open_collectives
from tgi_core.engine.decoder.partition import RankWeights
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.open_model import NewRunner, load_table
from tgi_core.engine.rank_session import RankSession
from tgi_core.engine.speculators.base import no_proposals
from tgi_core.engine.static.device import StaticKit
from tgi_core.engine.static.runner import StaticRunner
from tgi_core.engine.static.warmup import warm_up

_PROGRAMS = Kernel("programs", "one per shape", "none is compiled in traffic")


def open_static(options: OpenOptions, kit: StaticKit, progress: Progress) -> BaseSession:
    """Load a model, or this rank's part of it. Raises InvalidModel for one that no decoder table describes, Unsupported, PeerLost."""
    if options.adapters:
        raise Unsupported("--lora-adapters: static devices run decoders from their tables, which hold no adapters; leave it out")
    kernels = *kit.choices(), *no_proposals(options, "compiled programs return logits only")
    if options.group.world == 1:
        runner, warm = _loaded(options, kit, progress, kit.table_runner)
        return AheadSession(runner, runner.device, options.masks, (), kernels, _PROGRAMS, warm)
    collectives = open_collectives(options.group, kit.collectives, kit.device)

    def make(weights: DecoderWeights, progress: Progress) -> StaticRunner:
        runner = StaticRunner(kit, RankWeights(weights, options.group), progress, collectives)
        collectives.meet()  # reading takes some ranks longer than others, and the device's own timeouts do not allow for that
        return runner

    def reserve(plan: WarmupPlan, progress: Progress) -> Capacity:
        return replace(warm(plan, progress)[1], in_flight=1)  # in lock step: rank 0 samples

    try:
        runner, warm = _loaded(options, kit, progress, make)
        return RankSession(runner, runner.shape, options.masks, collectives, (*kernels, _PROGRAMS), reserve)
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
