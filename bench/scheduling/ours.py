"""This project's scheduler, model server and reference backend, on a clock driven by the roofline model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.scheduling.device import Roofline, Served
from tgi_core.backend import OutputOptions, Sampling, WarmupPlan
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.session import Session
from tgi_core.benchmark.trace import Arrival
from tgi_core.engine.static.buckets import BucketRules, Buckets
from tgi_core.engine.static.splitting import blocks_of, split
from tgi_core.scheduler import GenerationRequest, Scheduler
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo, Stopping

LONGEST_ROW = 16_384


class Simulation:
    """One run of a trace. `advised`: whether the scheduler knows the sizes that the device pads to."""

    def __init__(self, roofline: Roofline, tokenizer: Tokenizer, advised: bool = True) -> None:
        self.now = 0.0
        self.steps = 0
        self.prompt_tokens = self.computed_tokens = 0
        """Tokens of prompts, and tokens that the device computed for them."""
        self.decode_blocks = self.decode_blocks_read = 0
        """Blocks that decode rows hold, and those that programs of the static engine's sizes read for them."""
        self.gaps: list[float] = []
        """Seconds between consecutive tokens of a request."""
        self._roofline = roofline
        session = Session(
            ReferenceSession(tokenizer.vocab_size, LONGEST_ROW, asynchronous=False, on_step=self._computed), "reference"
        )
        info = ShardInfo("toy", "reference", "none", "none", (1, 0), session.capabilities())
        self._server = ModelServer(session, tokenizer, info)
        plan = WarmupPlan(roofline.max_rows, LONGEST_ROW, roofline.max_step_tokens, roofline.num_blocks, roofline.block_size)
        capacity = self._server.warmup(plan, lambda what, done, total, unit: None)
        capacity = replace(capacity, takes=roofline.takes if advised else ())
        self._grid = Buckets.of(capacity, BucketRules())
        self._scheduler = Scheduler(info.capabilities, capacity, clock=lambda: self.now)
        self._vocabulary = tokenizer.vocab_size

    def run(self, arrivals: list[Arrival]) -> list[Served]:
        """Serve all requests."""
        waiting = list(reversed(arrivals))
        arrived: dict[int, Arrival] = {}
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        served: list[Served] = []
        while waiting or not self._scheduler.idle:
            if self._scheduler.idle:
                self.now = max(self.now, waiting[-1].at)
            while waiting and waiting[-1].at <= self.now:
                item = waiting.pop()
                arrived[self._scheduler.add(self._request(item, len(arrived)))] = item
            events = self._scheduler.complete(self._server.exchange(self._scheduler.plan()))
            if self._scheduler.lost:
                raise RuntimeError(str(self._scheduler.lost))
            for event in events:
                if event.generation is None:
                    raise RuntimeError(f"a request failed: {event.error}")
                first.setdefault(event.key, self.now)
                if event.key in last:
                    self.gaps.append(self.now - last[event.key])
                last[event.key] = self.now
                if event.generation.finished is not None:
                    served.append(Served(arrived[event.key], first[event.key], self.now))
        return served

    def _computed(self, work: tuple[Any, ...]) -> None:
        self.now += self._roofline.step((item.take, item.start) for item in work)
        self.steps += 1
        takes = [item.take for item in work if item.take > 1]
        self.prompt_tokens += sum(takes)
        self.computed_tokens += sum(map(self._roofline.computed, takes))
        for call in split([item.start for item in work], [item.take for item in work], self._grid):
            if call.shape.take > 1:
                continue
            self.decode_blocks += sum(blocks_of(part, self._grid.block_size) for part in call.parts)
            self.decode_blocks_read += call.shape.blocks

    @property
    def decode_padding(self) -> float:
        """Share of the blocks read for decode rows that is padding."""
        return 1 - self.decode_blocks / self.decode_blocks_read

    @property
    def padding(self) -> float:
        """Share of the tokens computed for prompts that are padding."""
        return 1 - self.prompt_tokens / self.computed_tokens

    def _request(self, item: Arrival, number: int) -> GenerationRequest:
        """A prompt with a unique start, so that the prefix cache has no effect."""
        ids = (number // 1000 % self._vocabulary, number % 1000, *((number + place) % 997 for place in range(item.prompt - 2)))
        return GenerationRequest.of(
            ids[: item.prompt], Sampling(), Stopping(item.answer, ignore_eos=True), OutputOptions(logprobs=False)
        )
