"""Assembly of the server: model files, shard, scheduler, router, socket."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from tgi_core.cli.collector import settle
from tgi_core.cli.loops import Serving, start
from tgi_core.cli.memory_plan import print_memory_plan
from tgi_core.cli.shard_openers import choose_openers, warmup_plan
from tgi_core.cli.tunnel import tunnel
from tgi_core.cli.weights import fetch_models, pin_adapters
from tgi_core.client.base import Opener, ReadyShard
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.lifecycle import Lifecycle, Phase
from tgi_core.model_files import DEMO
from tgi_core.model_sizes import read_sizes
from tgi_core.run_folder import end_at_once, remove_all
from tgi_core.telemetry.logs import announce
from tgi_core.telemetry.progress import both, progress
from tgi_core.telemetry.traces import Traces, open_traces

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from tgi_router import ServedModel

_log = logging.getLogger(__name__)

REPLACE_SIGNAL = signal.SIGUSR2
"""Replaces the shards of all replicas, one after another."""

_LEAVE_S = 2.0
"""Seconds that an interrupted startup may take to clean up."""


@dataclass(frozen=True, slots=True)
class ServerComponents:
    """Components behind the listening socket."""

    app: Starlette
    serving: Serving


async def serve(model: str, settings: Settings, addresses: Sequence[str] = ()) -> None:
    """Serve until stopped by a signal, with new shards or those at `addresses`. Answers health probes from the start. Raises
    StartupError, including when all shards are permanently lost."""
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
        opening = asyncio.create_task(start_components(model, settings, addresses, lifecycle, traces, stack))
        await asyncio.wait({server.serving, opening}, return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()
            await asyncio.wait({opening}, timeout=_LEAVE_S)
            _leave(server.stopped_by)
        components = opening.result()
        server.abort = lambda: asyncio.ensure_future(components.serving.abandon())
        if components.serving.replace_all is not None:
            stack.enter_context(_replacing_on_signal(components.serving.replace_all))
        settle()
        front.pass_to(components.app)
        server.pass_through(components.app.state.admission)
        await stack.enter_async_context(tunnel(settings, listener.getsockname()[1]))
        if lifecycle.shard is Phase.STARTING:  # the shard may already be lost
            lifecycle.serving()
        _log.info("Connected")  # TGI's message, which scripts wait for
        announce(f"ready after {time.monotonic() - start:.1f} s: {url}")
        await _either(server.serving, asyncio.ensure_future(components.serving.ended()))
    if lifecycle.phase is Phase.FAILED:
        raise StartupError(f"the shard is lost: {lifecycle.reason}")


async def _either(serving: asyncio.Task[None], ended: asyncio.Future[object]) -> None:
    """Wait until the server has stopped or its shard is permanently lost."""
    either: tuple[asyncio.Future[Any], ...] = (serving, ended)
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()


@contextmanager
def _replacing_on_signal(replace_all: Callable[[str], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """On `REPLACE_SIGNAL`, replace the shards of all replicas, unless that is in progress."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def begin() -> None:
        if not tasks:
            task = asyncio.create_task(replace_all(f"on {REPLACE_SIGNAL.name}"))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    loop.add_signal_handler(REPLACE_SIGNAL, begin)
    try:
        yield
    finally:
        loop.remove_signal_handler(REPLACE_SIGNAL)
        for task in tasks:
            task.cancel()


def _leave(stopped_by: int | None) -> None:
    """Exit when stopped during startup, since the loading thread cannot be cancelled. After Ctrl-C, die of SIGINT as usual."""
    if stopped_by == signal.SIGINT:
        remove_all()
        logging.shutdown()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    end_at_once(0)


async def start_components(
    model: str, settings: Settings, addresses: Sequence[str], lifecycle: Lifecycle, traces: Traces | None, stack: AsyncExitStack
) -> ServerComponents:
    """Start everything behind the socket; `stack` closes it. Raises StartupError."""
    from tgi_router import create_app

    with progress() as line:
        show = both(line, lifecycle.progress)
        elsewhere, asked = bool(addresses) or settings.engine == "ray", settings
        directory, settings = await asyncio.to_thread(fetch_models, model, settings, show, weights=not elsewhere)
        settings = replace(settings, rope_scaling=None, rope_factor=None)  # the directory has them
        if not addresses:
            settings = await asyncio.to_thread(pin_adapters, settings, show)
    read_sizes(directory)
    openers = choose_openers(directory, _on_nodes(settings, asked), addresses)
    served, opened = await _opened(openers[: len(addresses) or settings.replicas], directory, model, settings, lifecycle)
    divided = bool(settings.sharded) or (settings.num_shard or 1) > 1
    print_memory_plan(opened[0].info.backend, opened[0].info, opened[0].capacity, divided, len(opened))
    registry = CollectorRegistry()
    serving = start(openers, opened, settings, registry, lifecycle, stack)
    app = create_app(settings, served, serving.generator, registry, traces, lifecycle)
    await stack.enter_async_context(app.router.lifespan_context(app))
    return ServerComponents(app, serving)


def _on_nodes(settings: Settings, asked: Settings) -> Settings:
    """Return the settings of shards. On other machines they find the model by themselves, as it was `asked` for."""
    if settings.engine != "ray":
        return settings
    return replace(settings, draft_model=asked.draft_model, rope_scaling=asked.rope_scaling, rope_factor=asked.rope_factor)


async def _opened(
    openers: Sequence[Opener], directory: Path, model: str, settings: Settings, lifecycle: Lifecycle
) -> tuple[ServedModel, list[ReadyShard]]:
    """Open the shards while the router starts. The first failure cancels all."""
    with progress() as line:
        show = both(line, lifecycle.progress)
        opening = [asyncio.create_task(opener.open(warmup_plan(settings), show)) for opener in openers]
        try:
            served = await asyncio.to_thread(_served_model, directory, model, settings)
            return served, await asyncio.gather(*opening)
        except BaseException:
            for each in opening:
                each.cancel()
            for outcome in await asyncio.gather(*opening, return_exceptions=True):
                if isinstance(outcome, ReadyShard):
                    await outcome.shard.abandon()
                    await outcome.shard.close()
            raise


def _served_model(directory: Path, model: str, settings: Settings) -> ServedModel:
    import tgi_router.api  # noqa: F401  slow import of FastAPI, done while the shard loads its model
    from tgi_router import ServedModel

    name = settings.served_model_name or ("tgi-core/demo" if directory == DEMO else model)
    return ServedModel.load(directory, name, settings)
