"""The supervisor, over shards in this process that can be told to fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.scheduler.device import alone, quiet, request
from tests.scheduler.running import running_loop
from tests.scheduler.test_loop import collect
from tgi_core.backend import BackendError, DeviceLost, Kernel, OutputOptions, WarmupPlan, hookimpl
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.session import Session
from tgi_core.backend.types import Closed
from tgi_core.client.base import ReadyShard, ShardGone, TakenOver
from tgi_core.client.local import LocalShard
from tgi_core.client.supervised import RestartRules, SupervisedShard, as_promised, pause, shortfall
from tgi_core.errors import StartupError
from tgi_core.lifecycle import Lifecycle, Phase
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.scheduler import GenerationFailed, SchedulerLoop
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo

PLAN = WarmupPlan(max_rows=8, max_row_tokens=256, num_blocks=128, block_size=4)
LOST = DeviceLost("the device fell off")


class Toy(ReferenceSession):
    """A toy model that may refuse to close."""

    def __init__(self, *arguments: Any, closing: BackendError | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._closing = closing

    @hookimpl
    def close(self) -> Closed:
        """Close, or not."""
        if self._closing is not None:
            raise self._closing
        return super().close()


@dataclass
class Shop:
    """Where shards come from: one for each list of options, or a failure to start."""

    tokenizer: Tokenizer
    stock: list[dict[str, Any] | StartupError]
    plans: list[WarmupPlan] = field(default_factory=list)
    is_open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.is_open.set()

    async def open(self, plan: WarmupPlan = PLAN) -> ReadyShard:
        """The next shard, once the shop is open."""
        await asyncio.sleep(0)
        await self.is_open.wait()
        self.plans.append(plan)
        options = self.stock.pop(0) if self.stock else {}
        if isinstance(options, StartupError):
            raise options
        less = options.get("less", {})
        session = Session(Toy(self.tokenizer.vocab_size, 512, **{k: v for k, v in options.items() if k != "less"}), "reference")
        info = ShardInfo("toy", "reference", "none", "none", (1, 0), session.capabilities())
        shard = LocalShard(ModelServer(session, self.tokenizer, info))
        return ReadyShard(shard, info, replace(await shard.warmup(plan, quiet), **less))


class RecordedLifecycle(Lifecycle):
    """Keeps what the loop reports; `at_loss` is called at each loss of the shard."""

    def __init__(self, at_loss: Callable[[], None] = lambda: None) -> None:
        super().__init__(Phase.SERVING)
        self.at_loss = at_loss
        self.reports: list[tuple[Phase, str]] = []

    def serving(self) -> None:
        """There is a shard again."""
        super().serving()
        self.reports.append((self.phase, self.reason))

    def restarting(self, reason: str, *, queueing: bool = False) -> None:
        """The shard is lost."""
        super().restarting(reason, queueing=queueing)
        self.reports.append((self.phase, self.reason))
        self.at_loss()


@asynccontextmanager
async def instance(
    shop: Shop, ends: asyncio.Future[str] | None = None, **rules: Any
) -> AsyncIterator[tuple[SchedulerLoop, RecordedLifecycle]]:
    """A loop over supervised shards, and the lifecycle that it reports to. The first shard ends by itself with `ends`."""
    first = await shop.open()
    if ends is not None:
        first.shard.ended = lambda: ends  # type: ignore[method-assign, assignment, return-value]

    async def reopen() -> ReadyShard:
        return await shop.open(as_promised(first.capacity, lambda capabilities: WarmupPlan())(first.info.capabilities))

    shard = SupervisedShard(first, reopen, RestartRules(**rules))
    lifecycle = RecordedLifecycle()
    loop = SchedulerLoop(shard, first.info, first.capacity, supervisor=shard, lifecycle=lifecycle)
    async with running_loop(loop, shard):
        yield loop, lifecycle


async def test_requests_continue(demo_tokenizer: Tokenizer) -> None:
    """A device that is lost in its third step: what runs and what waits ends as it does alone, the shard is asked for what it promised,
    and whoever watches hears of both turns."""
    asked = [request((index, 2), 30 + index, seed=index if index % 2 else None) for index in range(12)]
    shop = Shop(demo_tokenizer, [{"faults": {3: LOST}}])
    async with instance(shop) as (loop, lifecycle):
        made = await asyncio.gather(*(collect(loop.submit(one)) for one in asked))
        assert made == [alone(demo_tokenizer, one) for one in asked]
        assert lifecycle.reports == [(Phase.RESTARTING, str(LOST)), (Phase.SERVING, "")]
        assert await loop.healthy() and loop.snapshot().blocks_free == loop.snapshot().blocks_total
    wanted = shop.plans[1]
    assert (wanted.max_rows, wanted.max_row_tokens, wanted.num_blocks, wanted.block_size) == (8, 256, 128, 4)
    assert wanted.max_step_tokens is not None


async def test_requests_fail_where_that_is_asked_for(demo_tokenizer: Tokenizer) -> None:
    """What runs and what waits fails with the reason, and so does what comes before the next shard is there; then all is well."""
    shop = Shop(demo_tokenizer, [{"faults": {3: LOST}}])
    async with instance(shop, continues=False) as (loop, lifecycle):
        refused: list[str] = []

        def ask() -> None:
            shop.is_open.clear()
            assert not lifecycle.accepts
            with pytest.raises(GenerationFailed) as caught:
                loop.submit(request((1, 2), 9))
            refused.append(str(caught.value))

        lifecycle.at_loss = ask
        streams = [collect(loop.submit(request((index, 2), 30))) for index in range(12)]
        failed = await asyncio.gather(*streams, return_exceptions=True)
        assert {str(error) for error in failed} == {str(LOST)}
        assert refused == [f"the shard is being restarted: {LOST}"]
        assert not lifecycle.ready and len(shop.plans) == 1
        shop.is_open.set()
        while not lifecycle.ready:
            await asyncio.sleep(0)
        assert await collect(loop.submit(request((1, 2), 9))) == alone(demo_tokenizer, request((1, 2), 9))


async def test_a_shard_that_ends_while_idle_is_known_at_once(demo_tokenizer: Tokenizer) -> None:
    """Health and the lifecycle agree at every moment, and what comes before the next shard is refused with the reason."""
    ends = asyncio.get_running_loop().create_future()
    shop = Shop(demo_tokenizer, [{}])
    async with instance(shop, ends, continues=False) as (loop, lifecycle):
        await asyncio.sleep(0)
        assert await loop.healthy() and lifecycle.ready
        shop.is_open.clear()
        ends.set_result("its process ended")
        while await loop.healthy():
            assert lifecycle.ready and lifecycle.accepts
            await asyncio.sleep(0)
        assert (lifecycle.phase, lifecycle.reason, lifecycle.accepts) == (Phase.RESTARTING, "its process ended", False)
        with pytest.raises(GenerationFailed, match="being restarted: its process ended"):
            loop.submit(request((1, 2), 9))
        shop.is_open.set()
        while not lifecycle.ready:
            await asyncio.sleep(0)
        assert await collect(loop.submit(request((1, 2), 9))) == alone(demo_tokenizer, request((1, 2), 9))


async def test_images_are_tokenized_on_the_next_shard(demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call finds the shard lost long before its process has ended: the prompt waits for the next shard and asks the lost one no more."""
    running = asyncio.get_running_loop()
    ends, calls, tokens = running.create_future(), list[LocalShard](), PromptTokens((1, 2), ())

    async def tokenize(shard: LocalShard, prompt: MultimodalPrompt) -> PromptTokens:
        calls.append(shard)
        if len(shop.plans) == 1:
            raise LOST
        return tokens

    monkeypatch.setattr(LocalShard, "tokenize_images", tokenize)
    shop = Shop(demo_tokenizer, [{}])
    async with instance(shop, ends) as (loop, _):
        running.call_later(0.7, ends.set_result, "its process ended")
        assert await loop.tokenize_images(MultimodalPrompt(("",), (), special=True)) == tokens
        assert len(calls) == 2 and calls[0] is not calls[1]


async def test_it_ends_while_a_shard_is_closed(demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the shard has closed at the very moment at which the loop is cancelled."""
    shop, closing, closed = Shop(demo_tokenizer, [{}]), asyncio.Event(), asyncio.Event()

    async def close(shard: LocalShard) -> None:
        closing.set()
        await closed.wait()

    async with asyncio.timeout(60), instance(shop) as (loop, _):
        monkeypatch.setattr(LocalShard, "close", close)
        shop.is_open.clear()
        loop.replace_shard("a test")
        await closing.wait()
        monkeypatch.undo()
        closed.set()


async def test_the_budget_counts_restarts_without_a_token(demo_tokenizer: Tokenizer) -> None:
    """Restarts that fail are restarts; when there were too many in a row the requests get the last reason, and the loop says that it has
    failed."""
    nothing = StartupError("the model is gone")
    async with instance(Shop(demo_tokenizer, [{"faults": {3: LOST}}, nothing, nothing]), budget=2) as (loop, lifecycle):
        with pytest.raises(GenerationFailed, match="the model is gone; 2 restarts in a row"):
            await collect(loop.submit(request((1, 2), 30)))
        await loop.ended.wait()
        assert lifecycle.phase is Phase.FAILED and "the model is gone" in lifecycle.reason and not await loop.healthy()
        with pytest.raises(GenerationFailed, match="the model is gone"):
            loop.submit(request((1, 2), 30))


async def test_a_token_fills_the_budget_again(demo_tokenizer: Tokenizer) -> None:
    """With a budget of one, six shards in a row may be lost as long as each has brought a token."""
    shop = Shop(demo_tokenizer, [{"faults": {3: LOST}}] * 6)
    async with instance(shop, budget=1) as (loop, _):
        assert await collect(loop.submit(request((1, 2), 60))) == alone(demo_tokenizer, request((1, 2), 60))
    assert len(shop.plans) == 7


async def test_a_request_that_kills_every_shard_ends_alone(demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that are lost in the first step of a request, again and again: it fails before the budget is spent, and the next one is
    served."""
    shop = Shop(demo_tokenizer, [{"faults": {1: LOST}}] * 4)
    monkeypatch.setattr("tgi_core.client.supervised._LONGEST_PAUSE_S", 0.01)
    async with instance(shop) as (loop, _):
        with pytest.raises(GenerationFailed, match="fell off"):
            await collect(loop.submit(request((1, 2), 30)))
        assert await collect(loop.submit(request((3, 2), 9))) == alone(demo_tokenizer, request((3, 2), 9))


@pytest.mark.parametrize(
    ("less", "lacks"),
    [
        ({"max_rows": 7}, "max_rows 7 instead of 8"),
        ({"groups": ()}, "another kind of cache"),
        ({"draft": 3}, "another draft"),
        ({"max_step_tokens": 1}, "max_step_tokens 1"),
    ],
)
async def test_a_shard_that_promises_less_is_none(demo_tokenizer: Tokenizer, less: dict[str, Any], lacks: str) -> None:
    """It counts as a restart that failed, and is closed."""
    async with instance(Shop(demo_tokenizer, [{"faults": {3: LOST}}, {"less": less}]), budget=1) as (loop, _):
        with pytest.raises(GenerationFailed, match=lacks):
            await collect(loop.submit(request((1, 2), 30)))


async def test_a_shard_that_promises_as_much_is_one(demo_tokenizer: Tokenizer) -> None:
    """More is no shortfall; fewer blocks are."""
    one, other = await Shop(demo_tokenizer, []).open(), await Shop(demo_tokenizer, []).open(replace(PLAN, num_blocks=64))
    assert shortfall(one, other) == "" and shortfall(other, one) == "fewer blocks of cache"
    for opened in (one, other):
        await opened.shard.close()


async def test_why_a_kernel_runs_may_change(demo_tokenizer: Tokenizer) -> None:
    """The first start on a machine measures its kernels, the next one knows which are the fastest; other kernels give other bits."""
    opened = await Shop(demo_tokenizer, []).open()
    first, next_one, other = (
        replace(opened, info=replace(opened.info, capabilities=replace(opened.info.capabilities, kernels=(kernel,))))
        for kernel in (
            Kernel("kernels", "amx", "measured"),
            Kernel("kernels", "amx", "measured earlier"),
            Kernel("kernels", "torch"),
        )
    )
    assert shortfall(next_one, first) == "" and shortfall(other, first) == "other capabilities"
    await opened.shard.close()


async def test_a_shard_in_this_process_must_close(demo_tokenizer: Tokenizer) -> None:
    """If it does not, its memory would be taken twice: that is the end, with the reason."""
    async with instance(Shop(demo_tokenizer, [{"faults": {3: LOST}, "closing": DeviceLost("no answer")}])) as (loop, _):
        with pytest.raises(GenerationFailed, match="does not close: no answer"):
            await collect(loop.submit(request((1, 2), 30)))


async def test_a_hang_in_this_process_is_found(demo_tokenizer: Tokenizer) -> None:
    """A step that never ends: its requests end with that reason once no restart is left."""
    going_on, steps = threading.Event(), [0]

    def hang(work: object) -> None:
        steps[0] += 1
        if steps[0] == 5:
            going_on.wait()

    async with instance(Shop(demo_tokenizer, [{"on_step": hang}]), budget=0, watchdog_floor=0.2) as (loop, _):
        with pytest.raises(GenerationFailed, match="the shard hangs"):
            await collect(loop.submit(request((1, 2), 30)))
        going_on.set()


async def test_a_shard_that_was_taken_over_is_not_taken_back(demo_tokenizer: Tokenizer) -> None:
    """Two routers on one shard would take it from each other for ever."""
    shop = Shop(demo_tokenizer, [])
    first = await shop.open()
    shard = SupervisedShard(first, shop.open, RestartRules())
    with pytest.raises(ShardGone, match="another router"):
        await shard.restart(TakenOver("another router has it"))
    assert len(shop.plans) == 1
    await shard.close()


def test_pauses() -> None:
    """The first restart is at once, then it takes 1, 2, 4 … 30 seconds."""
    assert [pause(number) for number in range(1, 10)] == [0, 1, 2, 4, 8, 16, 30, 30, 30]


async def test_the_prompt_is_told_once(demo_tokenizer: Tokenizer) -> None:
    """Logprobs of the prompt came with the first token; a continued request does not tell them again."""
    plain = request((1, 2, 3), 30)
    asked = replace(plain, request=replace(plain.request, want=OutputOptions(prompt_logprobs=True)))
    async with instance(Shop(demo_tokenizer, [{"faults": {3: LOST}}, {"faults": {5: LOST}}])) as (loop, _):
        prompt = [token.id async for generation in loop.submit(asked) for token in generation.prompt]
    assert prompt == [1, 2, 3]


async def test_stop_tokens_survive(demo_tokenizer: Tokenizer) -> None:
    """A continued request stops at its stop token as one that nothing befell."""
    wanted = request((1, 2, 3), 30)
    made = alone(demo_tokenizer, wanted)
    stop = next(id for place, id in enumerate(made) if place > 11 and id not in made[:place])
    asked = replace(wanted, stopping=replace(wanted.stopping, stop_ids=(stop,)))
    async with instance(Shop(demo_tokenizer, [{"faults": {4: LOST}}, {"faults": {5: LOST}}])) as (loop, _):
        assert await collect(loop.submit(asked)) == made[: made.index(stop) + 1] == alone(demo_tokenizer, asked)
