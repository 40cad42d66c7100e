"""Results that are handed over as they come, without a task that waits for each."""

from __future__ import annotations

import asyncio

import pytest

from tests.router.scripted import says
from tgi_core.scheduler import GenerationStream
from tgi_core.scheduler.types import GenerationFailed, NotRead
from tgi_core.wire.types import Generation


class Reader:
    """Takes what it is given; is full after so many, until it is emptied."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken: list[Generation] = []

    def take(self, made: Generation) -> bool:
        """One more."""
        self.taken.append(made)
        self.room -= 1
        return self.room > 0


async def test_everything_comes_at_once_and_in_order() -> None:
    """What was there before and what comes is taken in order, each in the turn in which it is pushed; the end ends the pouring."""
    stream, reader, made = GenerationStream(0.0, lambda: None), Reader(100), says(*"abcdef")
    stream.push(made[0])
    pouring = asyncio.create_task(stream.pour(reader.take))
    await asyncio.sleep(0)
    for count, each in enumerate(made[1:], 2):
        stream.push(each)
        assert len(reader.taken) == count
    await pouring
    assert reader.taken == made


async def test_a_full_reader_is_waited_for() -> None:
    """After a no nothing is handed over until the reader says that it can go on; nothing is lost, and the order stays."""
    stream, reader, made = GenerationStream(0.0, lambda: None), Reader(2), says(*"abcdef")
    pouring = asyncio.create_task(stream.pour(reader.take))
    await asyncio.sleep(0)
    for each in made:
        stream.push(each)
    assert reader.taken == made[:2]
    while reader.taken != made:
        reader.room = 2
        stream.resume()
    await pouring


async def test_a_backlog_leaves_others_their_turn() -> None:
    """Much that has waited is handed over in parts, between which others run."""
    stream, reader, made = GenerationStream(0.0, lambda: None, buffer=1 << 40), Reader(10_000), says(*["x"] * 1000)
    for each in made:
        stream.push(each)
    pouring = asyncio.create_task(stream.pour(reader.take))
    turns = 0
    while not pouring.done():
        turns += 1
        await asyncio.sleep(0)
    assert reader.taken == made and turns > 10


async def test_what_the_reader_raises_ends_the_request() -> None:
    """The pusher goes on, the request is cancelled, and whoever pours is told."""
    cancelled: list[bool] = []
    stream = GenerationStream(0.0, lambda: cancelled.append(True))

    def take(made: Generation) -> bool:
        raise ValueError("cannot be shown")

    pouring = asyncio.create_task(stream.pour(take))
    await asyncio.sleep(0)
    stream.push(says("a", "b")[0])
    with pytest.raises(ValueError, match="cannot be shown"):
        await pouring
    assert cancelled == [True]


async def test_failures_come_after_what_was_made() -> None:
    """An error ends the pouring once all before it is taken; one that does not read is told so in the same way."""
    stream, reader = GenerationStream(0.0, lambda: None), Reader(1)
    pouring = asyncio.create_task(stream.pour(reader.take))
    await asyncio.sleep(0)
    made = says("a", "b", "c")
    stream.push(made[0])
    stream.push(made[1])
    stream.fail(GenerationFailed("the device is lost"))
    assert reader.taken == made[:1]
    reader.room = 2
    stream.resume()
    with pytest.raises(GenerationFailed):
        await pouring
    assert reader.taken == made[:2]

    slow = GenerationStream(0.0, lambda: None, buffer=1)
    reader = Reader(1)
    pouring = asyncio.create_task(slow.pour(reader.take))
    await asyncio.sleep(0)
    for each in made[:3]:
        slow.push(each)
    reader.room = 9
    slow.resume()
    with pytest.raises(NotRead):
        await pouring
