"""Assembly of the server: model files, shard, scheduler, router, socket."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prometheus_client import CollectorRegistry

from tgi_core.backend import Progress
from tgi_core.cli.collector import settle
from tgi_core.cli.memory_plan import print_memory_plan
from tgi_core.cli.shard_openers import choose_opener, warmup_plan
from tgi_core.cli.tunnel import tunnel
from tgi_core.cli.weights import fetch_models, pin_adapters
from tgi_core.client.base import Opener, ReadyShard
from tgi_core.client.supervised import RestartRules, SupervisedShard, as_promised
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.lifecycle import Lifecycle, Phase
from tgi_core.model_files import DEMO
from tgi_core.model_sizes import read_sizes
from tgi_core.run_folder import end_at_once, remove_all
from tgi_core.scheduler import SchedulerLoop, SchedulerOptions
from tgi_core.scheduler.batch_metrics import BatchMetrics
from tgi_core.telemetry.logs import announce
from tgi_core.telemetry.progress import progress
from tgi_core.telemetry.traces import Traces, open_traces

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from tgi_router import ServedModel

_log = logging.getLogger(__name__)

_LEAVE_S = 2.0
"""Seconds that an interrupted startup may take to clean up."""


@dataclass(frozen=True, slots=True)
class ServerComponents:
    """Components behind the listening socket."""

    app: Starlette
    loop: SchedulerLoop
    shard: SupervisedShard


async def serve(model: str, settings: Settings, address: str | None = None) -> None:
    """Serve until stopped by a signal, with a new shard or the one at `address`. Answers health probes from the start. Raises
    StartupError, including when the shard is permanently lost."""
    from tgi_router import Front

    from tgi_core.cli.listening import bind, listening, url_of

    start = time.monotonic()
    listener = bind(settings)
    traces = open_traces(settings.otlp_endpoint, settings.otlp_service_name)
    lifecycle = Lifecycle()
    front = Front(settings, lifecycle)
    url = url_of(listener)
    async with AsyncExitStack() as stack:
        if traces is not None:
            stack.push_async_callback(asyncio.to_thread, traces.close)
        server = await stack.enter_async_context(listening(front, listener, settings, lifecycle))
        opening = asyncio.create_task(_start_components(model, settings, address, lifecycle, traces, stack))
        await asyncio.wait({server.serving, opening}, return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()
            await asyncio.wait({opening}, timeout=_LEAVE_S)
            _leave(server.stopped_by)
        components = opening.result()
        server.abort = lambda: asyncio.ensure_future(components.shard.abandon())
        settle()
        front.pass_to(components.app)
        server.pass_through(components.app.state.admission)
        await stack.enter_async_context(tunnel(settings, listener.getsockname()[1]))
        if lifecycle.shard is Phase.STARTING:  # the shard may already be lost
            lifecycle.serving()
        _log.info("Connected")  # TGI's message, which scripts wait for
        announce(f"ready after {time.monotonic() - start:.1f} s: {url}")
        await _either(server.serving, asyncio.create_task(components.loop.ended.wait()))
    if lifecycle.phase is Phase.FAILED:
        raise StartupError(f"the shard is lost: {lifecycle.reason}")


async def _either(serving: asyncio.Task[None], ended: asyncio.Task[Literal[True]]) -> None:
    """Wait until the server has stopped or its shard is permanently lost."""
    both: tuple[asyncio.Task[Any], ...] = (serving, ended)
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()


def _leave(stopped_by: int | None) -> None:
    """Exit when stopped during startup, since the loading thread cannot be cancelled. After Ctrl-C, die of SIGINT as usual."""
    if stopped_by == signal.SIGINT:
        remove_all()
        logging.shutdown()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    end_at_once(0)


async def _start_components(
    model: str, settings: Settings, address: str | None, lifecycle: Lifecycle, traces: Traces | None, stack: AsyncExitStack
) -> ServerComponents:
    """Start everything behind the socket; `stack` closes it. Raises StartupError."""
    from tgi_router import create_app

    with progress() as line:
        show = _both(line, lifecycle.progress)
        directory, settings = await asyncio.to_thread(fetch_models, model, settings, show, weights=address is None)
        settings = replace(settings, rope_scaling=None, rope_factor=None)  # the directory has them
        if address is None:
            settings = await asyncio.to_thread(pin_adapters, settings, show)
    read_sizes(directory)
    opener = choose_opener(directory, settings, address)
    served, opened = await _opened(opener, directory, model, settings, lifecycle)
    divided = bool(settings.sharded) or (settings.num_shard or 1) > 1
    print_memory_plan(opened.info.backend, opened.info, opened.capacity, divided)
    registry = CollectorRegistry()
    batches = BatchMetrics(registry)
    loop, shard = _run(opener, opened, settings, batches, lifecycle, stack)
    batches.watch(opened.capacity, loop.snapshot)
    app = create_app(settings, served, loop, registry, traces, lifecycle)
    await stack.enter_async_context(app.router.lifespan_context(app))
    return ServerComponents(app, loop, shard)


async def _opened(
    opener: Opener, directory: Path, model: str, settings: Settings, lifecycle: Lifecycle
) -> tuple[ServedModel, ReadyShard]:
    """Open the shard while the router starts. The first failure cancels both."""
    with progress() as line:
        opening = asyncio.create_task(opener.open(warmup_plan(settings), _both(line, lifecycle.progress)))
        try:
            served = await asyncio.to_thread(_served_model, directory, model, settings)
            return served, await opening
        except BaseException:
            opening.cancel()
            [outcome] = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(outcome, ReadyShard):
                await outcome.shard.abandon()
                await outcome.shard.close()
            raise


def _served_model(directory: Path, model: str, settings: Settings) -> ServedModel:
    import tgi_router.api  # noqa: F401  slow import of FastAPI, done while the shard loads its model
    from tgi_router import ServedModel

    name = settings.served_model_name or ("tgi-core/demo" if directory == DEMO else model)
    return ServedModel.load(directory, name, settings)


def _run(
    opener: Opener, opened: ReadyShard, settings: Settings, batches: BatchMetrics, lifecycle: Lifecycle, stack: AsyncExitStack
) -> tuple[SchedulerLoop, SupervisedShard]:
    """Start the scheduler loop on a supervised shard, which is replaced when lost; `stack` ends both."""

    async def reopen() -> ReadyShard:
        with progress() as line:
            return await opener.open(as_promised(opened.capacity, warmup_plan(settings)), _both(line, lifecycle.progress))

    rules = RestartRules(settings.on_shard_loss == "continue", settings.shard_restarts, settings.watchdog_floor)
    shard = SupervisedShard(opened, reopen, rules)
    stack.push_async_callback(shard.close)
    options = scheduler_options(settings)
    loop = SchedulerLoop(
        shard,
        opened.info,
        opened.capacity,
        batches.turn,
        options,
        shard,
        lifecycle=lifecycle,
        observe_drafts=batches.drafts,
    )
    stack.push_async_callback(_end, asyncio.create_task(loop.run()))
    return loop, shard


async def _end(running: asyncio.Task[None]) -> None:
    """Cancel the scheduler loop. Raises the loop's own error, if any, so that a bug is not mistaken for a clean shutdown."""
    by_itself = running.done()
    running.cancel()
    [outcome] = await asyncio.gather(running, return_exceptions=True)
    if isinstance(outcome, Exception):
        raise outcome
    if by_itself and isinstance(outcome, asyncio.CancelledError):
        raise RuntimeError("the scheduler loop was cancelled unexpectedly")


def _both(first: Progress, second: Progress) -> Progress:
    def show(what: str, done: int, total: int, unit: str) -> None:
        first(what, done, total, unit)
        second(what, done, total, unit)

    return show


def scheduler_options(settings: Settings) -> SchedulerOptions:
    """Scheduling options from the settings."""
    return SchedulerOptions(
        prefix_caching=settings.prefix_caching,
        ageing_s=settings.priority_ageing,
        max_queued_requests=settings.max_queued_requests,
        max_queued_tokens=settings.max_queued_tokens,
        waiting_served_ratio=settings.waiting_served_ratio,
        max_waiting_tokens=settings.max_waiting_tokens,
        earlier_answers=settings.speculator == "suffix",
    )
