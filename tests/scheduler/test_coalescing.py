"""What several steps made goes out together where the server is the limit; nothing is lost, nobody waits for long."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from tests.scheduler.device import alone, request
from tests.scheduler.test_loop import collect, running, wanted
from tgi_core.client.local import LocalShard
from tgi_core.scheduler.coalescing import OutputCoalescer
from tgi_core.scheduler.events import Event
from tgi_core.scheduler.types import GenerationFailed
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import FinishReason, GeneratedText, Generation, Token, Turn, TurnResult

END = GeneratedText("", 0, FinishReason.LENGTH)


def made(key: int, id: int, end: GeneratedText | None = None) -> Event:
    """A token of a request."""
    return Event(key, Generation(key, (Token(id, "", 0.0, False),), finished=end))


def tokens(events: Iterable[Event]) -> list[int]:
    """Their tokens."""
    return [token.id for event in events if event.generation for token in event.generation.tokens]


@given(
    st.lists(st.lists(st.integers(0, 4), unique=True), max_size=40),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=40, max_size=40),
    st.lists(st.integers(0, 39), max_size=4),
)
def test_order_is_kept_and_nothing_lost(steps: list[list[int]], times: list[tuple[float, float]], flushes: list[int]) -> None:
    """Whatever takes how long: each request gets its tokens in order, the first of them at once, its end and its error too."""
    coalescer, sent, got = OutputCoalescer(), defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    last = {key: index for index, step in enumerate(steps) for key in step}
    count = 0
    for index, step in enumerate(steps):
        events, begun = [], {key for key in step if key not in sent}
        for key in step:
            count += 1
            sent[key].append(count)
            if last[key] == index and key == 0:
                sent[key].pop()
                events.append(Event(key, error=GenerationFailed("gone")))
            else:
                events.append(made(key, count, END if last[key] == index else None))
        out = coalescer.step(events) + (coalescer.flush() if index in flushes else [])
        for event in out:
            got[event.key] += tokens([event])
        coalescer.turn(*times[index])
        assert 1 <= coalescer.steps <= 16
        ended = {key for key in step if last[key] == index}
        assert all(got[key] == sent[key] for key in begun | ended)
        assert all(event.generation is None or event.generation.steps == len(event.generation.tokens) for event in out)
    for event in coalescer.flush():
        got[event.key] += tokens([event])
    assert {key: ids for key, ids in sent.items() if ids} == {key: ids for key, ids in got.items() if ids}


def turns(coalescer: OutputCoalescer, waited_s: float, delivered_s: float) -> int:
    """The steps that go out together after many such turns."""
    for _ in range(128):
        coalescer.turn(waited_s, delivered_s)
    return coalescer.steps


def test_it_grows_only_while_the_server_is_the_limit() -> None:
    """Delivering that takes longer than waiting bundles; a device that takes its time ends that."""
    coalescer = OutputCoalescer()
    assert turns(coalescer, 0.0001, 0.001) == 16
    assert turns(coalescer, 0.001, 0.0005) == 16
    assert turns(coalescer, 0.02, 0.001) == 1


def test_bundles_of_long_turns_are_small() -> None:
    """So many turns go out together as take no longer than a token may be held back."""
    coalescer = OutputCoalescer()
    assert turns(coalescer, 0.001, 0.011) == 2
    assert turns(coalescer, 0.0001, 0.001) == 16
    assert turns(coalescer, 0.001, 0.05) == 1


async def test_bundles_change_no_answer(demo_tokenizer: Tokenizer) -> None:
    """Forty requests over a loop that bundles: each makes what it makes alone, in fewer pieces."""
    async with running(demo_tokenizer, coalescer=OutputCoalescer(4)) as loop:
        streams = [loop.submit(wanted(index)) for index in range(40)]
        results = await asyncio.gather(*map(collect, streams))
    assert results == [alone(demo_tokenizer, wanted(index)) for index in range(40)]


async def test_nothing_is_held_while_the_shard_thinks(demo_tokenizer: Tokenizer) -> None:
    """A step that takes for ever keeps back no token of those before it."""

    coalescer, stuck, go_on = OutputCoalescer(4), asyncio.Event(), asyncio.Event()

    class Stuck(LocalShard):
        """Answers until something is held back, then not before it is told to."""

        async def exchange(self, turn: Turn) -> TurnResult:
            """The first while something is held waits."""
            if coalescer.holds:
                stuck.set()
                await go_on.wait()
            return await super().exchange(turn)

    async with running(demo_tokenizer, shard=Stuck, coalescer=coalescer) as loop:
        stream = loop.submit(request((1, 2), 20))
        before: list[int] = []
        while not stuck.is_set() or coalescer.holds:
            before += [token.id for token in (await anext(stream)).tokens]
        go_on.set()
        assert before + await collect(stream) == alone(demo_tokenizer, request((1, 2), 20))
