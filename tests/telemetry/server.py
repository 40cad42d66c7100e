"""A whole server on a socket, with the reference backend and everything that tells about it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tgi_router import Generator, ServedModel, create_app

from tests.router.serving import Served, serving
from tests.scheduler.running import running_loop
from tgi_core.backend import WarmupPlan
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.session import Session
from tgi_core.backend.wrappers import Metrics
from tgi_core.cli.loops import start
from tgi_core.cli.shard_openers import InProcess
from tgi_core.client.base import ReadyShard
from tgi_core.client.local import LocalShard
from tgi_core.config import Settings
from tgi_core.lifecycle import Lifecycle, Phase
from tgi_core.model_files import DEMO
from tgi_core.scheduler import SchedulerLoop
from tgi_core.scheduler.batch_metrics import BatchMetrics
from tgi_core.server.model_server import ModelServer
from tgi_core.server.verb_log import VerbLog
from tgi_core.telemetry.traces import Traces
from tgi_core.wire.types import ShardInfo

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Values of a scrape by name and labels."""

BLOCKS = 64


@contextmanager
def instance(*, traces: Traces | None = None, session: Any = None, **settings: Any) -> Iterator[Served]:
    """A server as `tgi serve` puts it together; `session` are options of the reference backend. It has ended when the block has."""
    ended = threading.Event()
    registry = CollectorRegistry()
    chosen = Settings(**settings)
    model = ServedModel.load(DEMO, "demo", chosen)

    async def open_shard() -> ReadyShard:
        reference = ReferenceSession(model.tokenizer.vocab_size, 1024, **(session or {}))
        verbs = VerbLog()
        opened = Session(reference, "reference", wrappers=(Metrics(verbs),))
        info = ShardInfo("demo", "reference", "none", "float32", (1, 0), opened.capabilities())
        shard = LocalShard(ModelServer(opened, model.tokenizer, info, verbs=verbs))
        plan = WarmupPlan(max_row_tokens=1024, num_blocks=BLOCKS)
        return ReadyShard(shard, info, await shard.warmup(plan, lambda *progress: None))

    @asynccontextmanager
    async def opening() -> AsyncIterator[Generator]:
        shards = [await open_shard() for _ in range(chosen.replicas)]
        if len(shards) > 1:
            async with AsyncExitStack() as stack:
                openers = [InProcess(DEMO, chosen)] * len(shards)  # not asked: no shard is lost
                yield start(openers, shards, chosen, registry, Lifecycle(Phase.SERVING), stack).generator
            ended.set()
            return
        [(shard, info, capacity)] = [(each.shard, each.info, each.capacity) for each in shards]
        batches = BatchMetrics(registry)
        loop = SchedulerLoop(shard, info, capacity, batches.turn)
        batches.watch(capacity, loop.snapshot)
        try:
            async with running_loop(loop, shard):
                yield loop
        finally:
            ended.set()

    with serving(lambda generator: create_app(chosen, model, generator, registry, traces), opening) as served:
        yield served
    ended.wait()


def scrape(served: Served) -> Series:
    """All series at this moment; the library's parser gives counters the suffix that they do not have."""
    families = text_string_to_metric_families(served.client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name.removesuffix("_total"), frozenset(sample.labels.items())): sample.value for sample in samples}


def value(series: Series, name: str, **labels: str) -> float:
    """One value."""
    return series[name, frozenset(labels.items())]
