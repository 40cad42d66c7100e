"""Grammars that a shard compiles before the requests that need them come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.grammar.device import request
from tests.grammar.schemas import check_answer, json_grammar, regex_grammar
from tests.grpc.shards import running, served
from tests.scheduler.device import quiet
from tests.scheduler.running import running_loop
from tgi_core.backend import DeviceLost, WarmupPlan
from tgi_core.client import grammars
from tgi_core.client.channel import ShardChannel
from tgi_core.client.child import open_child_shard
from tgi_core.client.connecting import connect
from tgi_core.client.grammars import HeldGrammars
from tgi_core.grammar import Cost, Grammar, GrammarsBusy, InvalidGrammar, matching
from tgi_core.grammar.compiler import GrammarCompiler
from tgi_core.model_files import DEMO
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.scheduler import SchedulerLoop
from tgi_core.server.masks import GrammarMasks
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.preparing import check_prepared, decode_prepare, encode_prepare, encode_release

SMALL, LARGE = Cost(10_000, 0.001), Cost(100 << 20, 0.001)
COLOUR = regex_grammar("(?:red|green|blue)")


@asynccontextmanager
async def opened() -> AsyncGenerator[SchedulerLoop, None]:
    """A shard in a process of its own, and a loop over it."""
    child = await open_child_shard(DEMO, ["--backend", "reference"], lambda _: WarmupPlan(max_row_tokens=256), quiet)
    loop = SchedulerLoop(child.shard, child.info, child.capacity)
    async with running_loop(loop, child.shard):
        yield loop


async def text(loop: SchedulerLoop, grammar: Grammar) -> str:
    """The answer of a request."""
    texts = [made.finished.text async for made in loop.submit(request(grammar)) if made.finished is not None]
    return texts[0]


async def test_a_shard_in_another_process() -> None:
    """It compiles what it is asked to, tells what is wrong with a grammar, keeps what is in use within its bytes, and answers with it."""
    async with opened() as loop:
        release = await loop.prepare(COLOUR, SMALL)
        check_answer(COLOUR, await text(loop, COLOUR))
        release()
        release()
        with pytest.raises(InvalidGrammar, match="unclosed group"):
            await loop.prepare(regex_grammar("(a"), SMALL)
        large = await loop.prepare(regex_grammar("large"), LARGE)
        for _ in range(2):
            with pytest.raises(GrammarsBusy):
                await loop.prepare(regex_grammar("larger"), LARGE)
        await loop.prepare(regex_grammar("small"), SMALL)
        large()
        await until_prepared(loop, regex_grammar("larger"), LARGE)
        person = json_grammar({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]})
        check_answer(person, await text(loop, person))  # though nobody has prepared it


async def until_prepared(loop: SchedulerLoop, grammar: Grammar, cost: Cost) -> None:
    """Once room has been made."""
    while True:
        try:
            await loop.prepare(grammar, cost)
        except GrammarsBusy:
            continue
        return


async def test_a_router_that_leaves_keeps_nothing(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """What one router had prepared is let go when it goes: the next one has all the room."""
    compiler = GrammarCompiler.for_model(DEMO, demo_tokenizer.eos_ids)
    assert compiler is not None
    with served(demo_tokenizer, tmp_path, masks=GrammarMasks(compiler)) as server:
        for grammar in (COLOUR, regex_grammar("other")):
            connected = await connect(server.address, DEMO, demo_tokenizer, quiet)
            shard = connected.shard
            loop = SchedulerLoop(shard, connected.info, await shard.warmup(WarmupPlan(max_row_tokens=256), quiet))
            task = asyncio.create_task(loop.run())
            await until_prepared(loop, grammar, LARGE)
            await text(loop, grammar)  # over the stream of steps, whose end tells that a router is gone
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await shard.close()


@pytest.mark.parametrize("kind", ["local", "grpc", "upstream_tgi"])
async def test_where_there_are_no_masks(demo_tokenizer: Tokenizer, tmp_path: Path, kind: str) -> None:
    """A shard without grammars prepares nothing, which is no error: the request will hear of it."""
    async with running(kind, demo_tokenizer, tmp_path) as loop:
        (await loop.prepare(COLOUR, SMALL))()


async def test_messages_that_are_none(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A kind of grammar that there is not is refused by name, and no thread of the shard is lost."""
    with served(demo_tokenizer, tmp_path) as server:
        channel = ShardChannel(server.address)
        for _ in range(40):
            with pytest.raises(Exception, match="grammar_type 9"):
                await channel.call("Prepare", pb.PrepareRequest(grammar_type=9))  # type: ignore[arg-type]
        await channel.close()


@pytest.mark.parametrize("source", ["[a-z]+", "\ud800", "", "é" * 9])
def test_the_way_there_and_back(source: str) -> None:
    """Grammar and cost arrive as they are, lone surrogates too."""
    grammar = Grammar(COLOUR.kind, source)
    assert decode_prepare(encode_prepare(grammar, SMALL)) == (grammar, SMALL)
    assert decode_prepare(encode_release(grammar))[0] == grammar
    check_prepared(pb.PrepareResponse())


@pytest.mark.parametrize("kind", ["local", "grpc"])
async def test_a_shard_that_takes_too_long(
    demo_tokenizer: Tokenizer, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests do not wait for ever; what it has compiled at last is not kept for those who have given up."""
    compiler = GrammarCompiler.for_model(DEMO, demo_tokenizer.eos_ids)
    assert compiler is not None
    gate, real = threading.Event(), matching.start

    def start(vocabulary: matching.LLTokenizer, source: str) -> matching.LLMatcher:
        assert "late" not in source or gate.wait(60)
        return real(vocabulary, source)

    monkeypatch.setattr(matching, "start", start)
    plan = WarmupPlan(max_row_tokens=256)
    async with running(kind, demo_tokenizer, tmp_path, plan, masks=GrammarMasks(compiler)) as loop:
        with monkeypatch.context() as patched:
            patched.setattr(grammars, "_LONGEST_S", 0.2)
            with pytest.raises(GrammarsBusy):
                await loop.prepare(regex_grammar("late"), LARGE)
        gate.set()
        await until_prepared(loop, COLOUR, LARGE)


class Shard:
    """Notes what it is asked for; compiles when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def prepare(self, grammar: Grammar, cost: Cost) -> None:
        """Note it, and wait."""
        self.asked.append(f"+{grammar.source}")
        await self.gate.wait()
        if self.error is not None:
            raise self.error

    async def drop(self, grammar: Grammar) -> None:
        """Note it."""
        self.asked.append(f"-{grammar.source}")
        if self.error is not None:
            raise self.error


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until it holds."""
    while not condition():
        await asyncio.sleep(0)


async def test_held_once_for_all() -> None:
    """Many requests with one grammar are one call; the last of them releases it, and the next one asks anew."""
    shard = Shard()
    held = HeldGrammars(shard.prepare, shard.drop)
    shard.gate.set()
    releases = await asyncio.gather(*(held.hold(COLOUR, SMALL) for _ in range(20)))
    for release in [*releases, *releases]:
        release()
    await until(lambda: len(shard.asked) == 2)
    (await held.hold(COLOUR, SMALL))()
    await until(lambda: len(shard.asked) == 4)
    assert shard.asked == [f"+{COLOUR.source}", f"-{COLOUR.source}"] * 2


async def test_who_leaves_meanwhile() -> None:
    """A client that leaves while its grammar compiles leaves nothing behind; one that waits for the same gets it."""
    shard = Shard()
    held = HeldGrammars(shard.prepare, shard.drop)
    leaving, staying = (asyncio.create_task(held.hold(COLOUR, SMALL)) for _ in range(2))
    await until(lambda: bool(shard.asked))
    leaving.cancel()
    shard.gate.set()
    release = await staying
    assert len(shard.asked) == 1
    release()
    await until(lambda: len(shard.asked) == 2)
    shard.gate.clear()
    leaving = asyncio.create_task(held.hold(COLOUR, SMALL))
    await until(lambda: len(shard.asked) == 3)
    leaving.cancel()
    shard.gate.set()
    await until(lambda: len(shard.asked) == 4)
    assert shard.asked[-1] == f"-{COLOUR.source}"


@pytest.mark.parametrize("error", [InvalidGrammar("x"), GrammarsBusy(), DeviceLost("x")])
async def test_what_fails_is_not_held(error: Exception) -> None:
    """All who wait hear of it, nothing is released, and the next one tries anew."""
    shard = Shard()
    shard.error = error
    shard.gate.set()
    held = HeldGrammars(shard.prepare, shard.drop)
    ends = await asyncio.gather(*(held.hold(COLOUR, SMALL) for _ in range(3)), return_exceptions=True)
    assert ends == [error] * 3 and len(shard.asked) == 1
    shard.error = None
    await held.hold(COLOUR, SMALL)
    assert len(shard.asked) == 2


async def test_what_takes_too_long_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard may keep the grammar just as the router gives it up."""
    monkeypatch.setattr(grammars, "_LONGEST_S", 0.01)
    shard = Shard()
    with pytest.raises(GrammarsBusy):
        await HeldGrammars(shard.prepare, shard.drop).hold(COLOUR, SMALL)
    await until(lambda: len(shard.asked) == 2)
    assert shard.asked == [f"+{COLOUR.source}", f"-{COLOUR.source}"]


async def test_slow_ones_wait_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow grammars are compiled one by one, few wait, and none is in the way of a quick one."""
    monkeypatch.setattr(grammars, "_SLOW_WAITING", 1)
    shard = Shard()
    held = HeldGrammars(shard.prepare, shard.drop)
    slow: list[Awaitable[object]] = [asyncio.create_task(held.hold(regex_grammar(f"s{n}"), Cost(1, 0.4))) for n in range(2)]
    await until(lambda: bool(shard.asked))
    with pytest.raises(GrammarsBusy):
        await held.hold(regex_grammar("s2"), Cost(1, 0.4))
    quick = asyncio.create_task(held.hold(COLOUR, SMALL))
    await until(lambda: len(shard.asked) == 2)
    assert shard.asked == ["+s0", f"+{COLOUR.source}"]
    shard.gate.set()
    await asyncio.gather(quick, *slow)
