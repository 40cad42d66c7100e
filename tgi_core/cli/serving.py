"""Putting the house together: model files, shard, scheduler, router, socket."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from tgi_core.cli.listening import bind, listen
from tgi_core.cli.memory_plan import print_memory_plan
from tgi_core.cli.opening import choose_opener, warmup_plan
from tgi_core.cli.tunnel import tunnel
from tgi_core.cli.weights import fetch_model
from tgi_core.client.base import Opened, Opener
from tgi_core.client.supervised import RestartRules, SupervisedShard, as_promised
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.model_files import DEMO, read_json
from tgi_core.scheduler import SchedulerLoop, SchedulerOptions
from tgi_core.telemetry.batches import BatchMetrics
from tgi_core.telemetry.logs import announce
from tgi_core.telemetry.progress import progress
from tgi_core.telemetry.traces import open_traces

if TYPE_CHECKING:
    from tgi_router import ServedModel

_log = logging.getLogger(__name__)


async def serve(model: str, settings: Settings, address: str | None = None) -> None:
    """Serve until told to stop, on a shard of our own or on the one at `address`. Raises StartupError, also for a shard that is lost
    for good."""
    start = time.monotonic()
    listener = bind(settings)
    traces = open_traces(settings.otlp_endpoint, settings.otlp_service_name)
    with progress() as show:
        directory = fetch_model(model, settings, show, weights=address is None)
    read_json(directory / "config.json")
    opener = choose_opener(directory, settings, address)
    served, opened = await _opened(opener, directory, model, settings)
    print_memory_plan(opened.info.backend, opened.info, opened.capacity)

    def ready() -> None:
        host, port = listener.getsockname()[:2]
        _log.info("Connected")  # what whoever watches TGI's log waits for
        announce(f"ready after {time.monotonic() - start:.1f} s: http://{host}:{port}")

    from tgi_router import create_app

    registry = CollectorRegistry()
    batches = BatchMetrics(registry)
    try:
        async with _running(opener, opened, settings, batches) as (loop, shard):
            batches.watch(opened.capacity, loop.snapshot)
            app = create_app(settings, served, loop, registry, traces)
            async with tunnel(settings, listener.getsockname()[1]):
                await listen(app, listener, settings, ready, loop.ended, lambda: asyncio.ensure_future(shard.abandon()))
    finally:
        if traces is not None:
            await asyncio.to_thread(traces.close)
    if loop.failure is not None:
        raise StartupError(f"the shard is lost: {loop.failure}")


async def _opened(opener: Opener, directory: Path, model: str, settings: Settings) -> tuple[ServedModel, Opened]:
    """The router's own start goes on while the shard reads its model. What fails first ends both."""
    with progress() as show:
        opening = asyncio.create_task(opener.open(warmup_plan(settings), show))
        try:
            served = await asyncio.to_thread(_served_model, directory, model, settings)
            return served, await opening
        except BaseException:
            opening.cancel()
            [outcome] = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(outcome, Opened):
                await outcome.shard.abandon()
                await outcome.shard.close()
            raise


def _served_model(directory: Path, model: str, settings: Settings) -> ServedModel:
    from tgi_router import ServedModel

    name = settings.served_model_name or ("tgi-core/demo" if directory == DEMO else model)
    return ServedModel.load(directory, name, settings)


@asynccontextmanager
async def _running(
    opener: Opener, opened: Opened, settings: Settings, batches: BatchMetrics
) -> AsyncGenerator[tuple[SchedulerLoop, SupervisedShard], None]:
    """A loop on a shard that is watched, and replaced when it is lost."""

    async def reopen() -> Opened:
        with progress() as show:
            return await opener.open(as_promised(opened.capacity, warmup_plan(settings)), show)

    rules = RestartRules(settings.on_shard_loss == "continue", settings.shard_restarts, settings.watchdog_floor)
    shard = SupervisedShard(opened, reopen, rules)
    loop = SchedulerLoop(shard, opened.info, opened.capacity, batches.turn, scheduler_options(settings), shard)
    running = asyncio.create_task(loop.run())
    try:
        yield loop, shard
    finally:
        running.cancel()
        [outcome] = await asyncio.gather(running, return_exceptions=True)
        await shard.close()
        if isinstance(outcome, Exception):
            raise outcome  # a fault of ours, which is not to pass for an orderly end


def scheduler_options(settings: Settings) -> SchedulerOptions:
    """How the settings want requests chosen."""
    return SchedulerOptions(
        prefix_caching=settings.prefix_caching,
        ageing_s=settings.priority_ageing,
        max_queued_requests=settings.max_queued_requests,
        max_queued_tokens=settings.max_queued_tokens,
        waiting_served_ratio=settings.waiting_served_ratio,
        max_waiting_tokens=settings.max_waiting_tokens,
    )
