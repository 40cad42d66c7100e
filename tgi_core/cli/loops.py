"""Assembly of what serves requests: a supervised shard with its scheduler loop, or several of them as a pool of replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from tgi_core.backend import Capacity
from tgi_core.cli.shard_openers import warmup_plan
from tgi_core.client.base import Opener, ReadyShard
from tgi_core.client.supervised import RestartRules, SupervisedShard, as_promised
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.lifecycle import Lifecycle
from tgi_core.replicas import ReplicaPool
from tgi_core.replicas.autoscaling import ScalingRules
from tgi_core.replicas.metrics import export_replicas
from tgi_core.replicas.parking import GatedOpener, NoShard
from tgi_core.scheduler import SchedulerLoop, SchedulerOptions
from tgi_core.scheduler.batch_metrics import BatchMetrics
from tgi_core.telemetry.progress import both, progress

if TYPE_CHECKING:
    from tgi_router import Generator


@dataclass(frozen=True, slots=True)
class Serving:
    """What serves requests. `ended` waits until it has permanently lost its shards, `abandon` abandons these. `replace_all` replaces
    several shards one after another, for a reason."""

    generator: Generator
    ended: Callable[[], Awaitable[object]]
    abandon: Callable[[], Awaitable[object]]
    replace_all: Callable[[str], Coroutine[Any, Any, None]] | None = None


def start(
    openers: Sequence[Opener],
    opened: Sequence[ReadyShard],
    settings: Settings,
    registry: CollectorRegistry,
    lifecycle: Lifecycle,
    stack: AsyncExitStack,
) -> Serving:
    """Start a scheduler loop for each opener; shards are replaced when lost, and `stack` ends them. Openers without an `opened` shard
    stay without one until more replicas are needed. Raises StartupError if the shards differ."""
    batches = BatchMetrics(registry)
    if len(openers) > 1:
        return _start_replicas(openers, opened, settings, registry, batches, lifecycle, stack)
    shard = _supervise(openers[0], opened[0], settings, lifecycle, stack)
    loop = SchedulerLoop(
        shard,
        opened[0].info,
        opened[0].capacity,
        batches.turn,
        scheduler_options(settings),
        shard,
        lifecycle=lifecycle,
        observe_drafts=batches.drafts,
    )
    stack.push_async_callback(_end, asyncio.create_task(loop.run()))
    batches.watch(opened[0].capacity, loop.snapshot)
    return Serving(loop, loop.ended.wait, shard.abandon)


def _start_replicas(
    openers: Sequence[Opener],
    opened: Sequence[ReadyShard],
    settings: Settings,
    registry: CollectorRegistry,
    batches: BatchMetrics,
    lifecycle: Lifecycle,
    stack: AsyncExitStack,
) -> Serving:
    try:
        check_alike(opened)
    except StartupError:
        for each in opened:
            stack.push_async_callback(each.shard.close)
        raise
    options = scheduler_options(settings)
    pool = ReplicaPool(_block_size(opened[0].capacity), lifecycle, options)
    shards: list[SupervisedShard] = []
    first = opened[0]
    absent = ReadyShard(NoShard(first), first.info, first.capacity)
    for opener, each in zip(openers, [*opened, *[absent] * (len(openers) - len(opened))], strict=True):
        replica = pool.join()
        gated = GatedOpener(opener, replica.wanted)
        shard = _supervise(gated, each, settings, replica.lifecycle, stack, pool)
        counted = batches.another()
        loop = SchedulerLoop(
            shard,
            each.info,
            each.capacity,
            counted.turn,
            options,
            shard,
            lifecycle=replica.lifecycle,
            observe_drafts=counted.drafts,
            replication=replica,
        )
        replica.attach(loop)
        shards.append(shard)
    for replica in pool.replicas:
        if replica.number >= len(opened):
            replica.park("it is not needed yet")
        stack.push_async_callback(_end, asyncio.create_task(replica.loop.run()))
    rules = scaling_rules(settings)
    if rules.least < rules.most:
        stack.push_async_callback(_end, asyncio.create_task(pool.scale(rules)))
    batches.watch(opened[0].capacity, pool.snapshot)
    export_replicas(registry, pool.snapshot)
    return Serving(pool, pool.ended, lambda: asyncio.gather(*(shard.abandon() for shard in shards)), pool.replace_all)


def scaling_rules(settings: Settings) -> ScalingRules:
    """How many replicas there may be, from the settings. Raises StartupError."""
    count, least, most = settings.replicas, settings.min_replicas, settings.max_replicas
    rules = ScalingRules(
        min(count, most or count) if least is None else least,
        max(count, least or 1) if most is None else most,
        settings.scale_up_wait,
        settings.scale_down_delay,
    )
    if not rules.least <= count <= rules.most:
        raise StartupError(
            f"--replicas {count}: the server starts with so many; it must be from --min-replicas {rules.least} to --max-replicas "
            f"{rules.most}"
        )
    if rules.least < rules.most and settings.on_shard_loss == "fail":
        raise StartupError(
            "--on-shard-loss fail: with --min-replicas or --max-replicas, requests continue on other replicas; leave it out"
        )
    return rules


def check_alike(opened: Sequence[ReadyShard]) -> None:
    """Check that requests can move between shards. Raises StartupError."""
    first = opened[0]
    for number, other in enumerate(opened[1:], 1):
        mine, theirs = (replace(each.info.capabilities, kernels=()) for each in (first, other))
        differing = {
            "another backend": first.info.backend != other.info.backend,
            "another API": first.info.api != other.info.api,
            "another dtype": first.info.dtype != other.info.dtype,
            "other capabilities": mine != theirs,
            "blocks of another size": _block_size(first.capacity) != _block_size(other.capacity),
        }
        for what, differs in differing.items():
            if differs:
                raise StartupError(f"replica {number} has {what} than replica 0; start all shards with the same model and flags")


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


def _supervise(
    opener: Opener,
    opened: ReadyShard,
    settings: Settings,
    lifecycle: Lifecycle,
    stack: AsyncExitStack,
    pool: ReplicaPool | None = None,
) -> SupervisedShard:
    async def reopen() -> ReadyShard:
        show = None if pool is None else lifecycle.progress  # a terminal shows one bar at a time
        with progress(show) as line:
            return await opener.open(as_promised(opened.capacity, warmup_plan(settings)), both(line, lifecycle.progress))

    rules = RestartRules(settings.on_shard_loss == "continue", settings.shard_restarts, settings.watchdog_floor)
    shard = SupervisedShard(opened, reopen, rules if pool is None else replace(rules, spared=pool.serves))
    stack.push_async_callback(shard.close)
    return shard


def _block_size(capacity: Capacity) -> int:
    return min(group.block_size for group in capacity.groups)


async def _end(running: asyncio.Task[None]) -> None:
    """Cancel the scheduler loop. Raises the loop's own error, if any, so that a bug is not mistaken for a clean shutdown."""
    by_itself = running.done()
    running.cancel()
    [outcome] = await asyncio.gather(running, return_exceptions=True)
    if isinstance(outcome, Exception):
        raise outcome
    if by_itself and isinstance(outcome, asyncio.CancelledError):
        raise RuntimeError("the scheduler loop was cancelled unexpectedly")
