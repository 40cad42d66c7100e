"""Putting the house together: model files, backend, shard, scheduler, router, socket."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from tgi_core.backend import API_VERSION, BackendError, Capacity, OpenOptions, Progress, WarmupPlan
from tgi_core.backend.probe import probe_all
from tgi_core.backend.registry import BY_NAME_ONLY, Plugin, find, installed, load, open_backend, select
from tgi_core.backend.session import Session
from tgi_core.backend.wrappers import Metrics, Trace
from tgi_core.cli.listening import bind, listen
from tgi_core.cli.memory_plan import print_memory_plan
from tgi_core.cli.tunnel import tunnel
from tgi_core.cli.weights import fetch_model
from tgi_core.client.local import LocalShard
from tgi_core.client.types import ShardInfo
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.model_files import DEMO, read_json
from tgi_core.scheduler import SchedulerLoop, SchedulerOptions
from tgi_core.server.masks import GrammarMasks
from tgi_core.server.model_server import ModelServer
from tgi_core.telemetry.batches import BatchMetrics
from tgi_core.telemetry.logs import announce
from tgi_core.telemetry.progress import progress
from tgi_core.telemetry.traces import open_traces
from tgi_core.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """A shard that is ready for requests."""

    shard: LocalShard
    info: ShardInfo
    capacity: Capacity


async def serve(model: str, settings: Settings) -> None:
    """Serve until told to stop. Raises StartupError."""
    start = time.monotonic()
    listener = bind(settings)
    traces = open_traces(settings.otlp_endpoint, settings.otlp_service_name)
    with progress() as show:
        directory = fetch_model(model, settings, show)
    read_json(directory / "config.json")
    tokenizer = Tokenizer.load(directory)
    plugin = choose_backend(settings.backend)

    from tgi_router import ServedModel, create_app

    name = settings.served_model_name or ("tgi-core/demo" if directory == DEMO else model)
    served = ServedModel.load(directory, name, settings)
    registry = CollectorRegistry()
    batches = BatchMetrics(registry)
    with progress() as show:
        opened = await open_shard(plugin, directory, tokenizer, settings, show, batches)
    print_memory_plan(plugin.name, opened.info, opened.capacity)
    loop = SchedulerLoop(opened.shard, opened.info, opened.capacity, batches.turn, scheduler_options(settings))
    batches.watch(opened.capacity, loop.snapshot)
    app = create_app(settings, served, loop, registry, traces)
    serving = asyncio.create_task(loop.run())

    def ready() -> None:
        host, port = listener.getsockname()[:2]
        _log.info("Connected")  # what whoever watches TGI's log waits for
        announce(f"ready after {time.monotonic() - start:.1f} s: http://{host}:{port}")

    try:
        async with tunnel(settings, listener.getsockname()[1]):
            await listen(app, listener, settings, ready)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await opened.shard.close()
        if traces is not None:
            await asyncio.to_thread(traces.close)


def choose_backend(name: str | None) -> Plugin:
    """The named backend, unprobed; or the one that the machine calls for. Raises StartupError."""
    if name is not None:
        return find(name)
    plugins = [load(entry) for entry in installed()]
    wanted = [item for item in plugins if item.device_kind not in BY_NAME_ONLY]
    return select(probe_all(wanted))


async def open_shard(
    plugin: Plugin, directory: Path, tokenizer: Tokenizer, settings: Settings, show: Progress, batches: BatchMetrics
) -> Opened:
    """Open the backend in a thread of its own and warm it up. Raises StartupError."""
    masks = await asyncio.to_thread(open_masks, directory, tokenizer, settings)
    memory_fraction = settings.memory_fraction * settings.cuda_memory_fraction
    options = OpenOptions(str(directory), settings.dtype, masks=masks, memory_fraction=memory_fraction)
    implementation = await asyncio.to_thread(open_backend, plugin, options, show)
    try:
        session = Session(implementation, plugin.name, wrappers=(Trace(), Metrics(batches.verb)))
        capabilities = session.capabilities()
        info = ShardInfo(directory.name, plugin.name, plugin.device_kind, settings.dtype, API_VERSION, capabilities)
        shard = LocalShard(ModelServer(session, tokenizer, info, masks))
        block_size = capabilities.block_sizes[0]
        capacity = await shard.warmup(warmup_plan(settings, block_size), show)
    except BackendError as error:
        raise StartupError(f"backend {plugin.name}: {error}") from error
    return Opened(shard, info, capacity)


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


def open_masks(directory: Path, tokenizer: Tokenizer, settings: Settings) -> GrammarMasks | None:
    """Masks for a model's grammars; None where they are switched off, or its tokenizer cannot have them."""
    return None if settings.disable_grammar_support else GrammarMasks.for_model(directory, tokenizer.eos_ids)


def warmup_plan(settings: Settings, block_size: int) -> WarmupPlan:
    """What the settings wish of the backend. Raises StartupError for a cache of less than one block."""
    tokens = settings.kv_cache_tokens
    if tokens is not None and tokens < block_size:
        raise StartupError(f"--kv-cache-tokens {tokens}: less than one block of {block_size} tokens")
    return WarmupPlan(
        max_rows=settings.max_batch_size,
        max_row_tokens=settings.max_total_tokens,
        max_step_tokens=settings.max_batch_prefill_tokens,
        num_blocks=None if tokens is None else tokens // block_size,
    )
