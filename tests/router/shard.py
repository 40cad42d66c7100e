"""Everything behind the router in this process: scheduler and model server over the reference backend."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tgi_router import Generator

from tgi_core.backend import OpenOptions, WarmupPlan
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.registry import find
from tgi_core.backend.session import Session
from tgi_core.client.local import LocalShard
from tgi_core.grammar.compiler import GrammarCompiler
from tgi_core.model_files import DEMO
from tgi_core.scheduler import SchedulerLoop, SchedulerOptions
from tgi_core.scheduler.scheduler import Clock
from tgi_core.server.masks import GrammarMasks
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo

PLAN = WarmupPlan(max_row_tokens=2048)


class Shard:
    """A shard of the demo model's vocabulary, with `grammars` or without, over the reference backend or, with the demo model itself,
    `on_cpu`, in its dtype. `steps` has the number of rows of each step of the reference backend. `clock` is the scheduler's."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        plan: WarmupPlan = PLAN,
        grammars: bool = False,
        on_cpu: str = "",
        options: SchedulerOptions | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.steps: list[int] = []
        self.loop: SchedulerLoop | None = None
        self.masks: GrammarMasks | None = None
        self.closed = threading.Event()
        self._tokenizer, self._plan, self._grammars, self._on_cpu = tokenizer, plan, grammars, on_cpu
        self._options, self._clock = options, clock

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[Generator]:
        """A scheduler loop on it."""
        if self._grammars:
            compiler = GrammarCompiler.for_model(self._tokenizer.directory, self._tokenizer.eos_ids)
            assert compiler is not None
            self.masks = GrammarMasks(compiler)
        session = self._session()
        info = ShardInfo("demo", "reference", "none", "float32", (1, 0), session.capabilities())
        shard = LocalShard(ModelServer(session, self._tokenizer, info, self.masks))
        capacity = await shard.warmup(self._plan, _quiet)
        self.loop = SchedulerLoop(shard, info, capacity, options=self._options, clock=self._clock)
        running = asyncio.create_task(self.loop.run())
        try:
            yield self.loop
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await shard.close()
            self.closed.set()

    def _session(self) -> Session:
        if self._on_cpu:
            return Session(find("cpu").open(OpenOptions(str(DEMO), dtype=self._on_cpu, masks=self.masks), _quiet), "cpu")
        toy = ReferenceSession(
            self._tokenizer.vocab_size, 2048, on_step=lambda work: self.steps.append(len(work)), masks=self.masks
        )
        return Session(toy, "reference")


def _quiet(what: str, done: int, total: int, unit: str) -> None:
    """Progress that nobody looks at."""
