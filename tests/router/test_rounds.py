"""Work of many clients in rounds of the event loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from tgi_router.rounds import AT_ONCE, Rounds


async def test_owners_take_turns() -> None:
    """However much work one owner has, another's is done after at most one piece of each."""
    rounds, done = Rounds(), list[str]()
    for _ in range(100):
        rounds.later("flood", lambda: done.append("flood"))
    for name in ("polite", "probe"):
        rounds.later(name, lambda name=name: done.append(name))
    while len(done) < 102:
        await asyncio.sleep(0)
    assert {"polite", "probe"} <= set(done[:3]) and done.count("flood") == 100


async def test_others_get_on() -> None:
    """Between a few requests that have begun the event loop does everything else."""
    rounds, begun, looks = Rounds(), list[int](), list[int]()

    def begin(number: int) -> None:
        begun.append(number)
        rounds.request_begun()

    for number in range(10 * AT_ONCE):
        rounds.later("", lambda number=number: begin(number))
    while len(begun) < 10 * AT_ONCE:
        await asyncio.sleep(0)
        looks.append(len(begun))
    assert begun == list(range(10 * AT_ONCE)) and len(looks) >= 10
    assert all(later - now <= AT_ONCE for now, later in pairwise(looks))


async def test_a_fault_stops_nobody_else() -> None:
    """Work that raises is told to the event loop; what waits behind it is done."""
    rounds, done, told = Rounds(), list[int](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))

    def fail() -> None:
        raise ZeroDivisionError

    rounds.later("a", fail)
    rounds.later("a", lambda: done.append(1))
    while not done:
        await asyncio.sleep(0)
    assert [type(each) for each in told] == [ZeroDivisionError]


@pytest.mark.parametrize("count", [1, AT_ONCE])
async def test_a_few_are_done_at_once(count: int) -> None:
    """What comes in one round waits from the first that is too many on, and not in the next round."""
    rounds = Rounds()
    for _ in range(2):
        assert [rounds.full() for _ in range(count)] == [False] * count
        await asyncio.sleep(0)
    assert [rounds.full() for _ in range(AT_ONCE + 1)] == [False] * AT_ONCE + [True]
