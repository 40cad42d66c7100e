"""The watchdog, on a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tests.grpc.values import shard_requests
from tgi_core.backend import Grant
from tgi_core.client.watchdog import AdaptiveTimeout, StepSizes, Watchdog
from tgi_core.wire.types import Decode, Prefill, Turn

FLOOR = 60.0


@dataclass
class Watched:
    """A watchdog, its clock, and what it has reported."""

    now: float = 1000.0
    alarms: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.timeout = AdaptiveTimeout(FLOOR)
        self.dog = Watchdog(self.timeout, self.hangs, lambda: self.now)

    async def hangs(self, text: str) -> None:
        """Called by the watchdog."""
        self.alarms.append(text)

    async def passes(self, seconds: float) -> None:
        """Time passes, and the process runs."""
        for _ in range(round(seconds / self.dog.period)):
            self.now += self.dog.period
            await self.dog.tick()

    async def stopped(self, seconds: float) -> None:
        """Time passes, and the process does not run."""
        self.now += seconds
        await self.dog.tick()


def decode(step: int, *grants: Grant) -> Turn:
    """A turn in lock step."""
    return Turn(launch=Decode(step, (step - 1,), grants), read=step)


async def test_a_hang_is_found_after_the_floor() -> None:
    """One alarm, at most a second after the floor, that says how old the step is."""
    watched = Watched()
    watched.dog.begin(decode(1))
    await watched.passes(FLOOR - 1)
    assert watched.alarms == []
    await watched.passes(2)
    assert len(watched.alarms) == 1 and "60." in watched.alarms[0]
    await watched.passes(500)
    assert len(watched.alarms) == 1


async def test_an_idle_shard_never_alarms() -> None:
    """Between turns any time may pass."""
    watched = Watched()
    watched.dog.begin(decode(1))
    watched.dog.end()
    await watched.passes(100_000)
    assert watched.alarms == []


async def test_time_in_which_we_were_stopped_does_not_count() -> None:
    """Ten times an hour's sleep in one step is no hang; the step's own minute after it is."""
    watched = Watched()
    watched.dog.begin(decode(1))
    for _ in range(10):
        await watched.stopped(3600)
        await watched.passes(5)
    assert watched.alarms == []
    await watched.passes(15)
    assert len(watched.alarms) == 1


async def test_steps_in_a_row_are_not_one_step() -> None:
    """An hour of steps of 50 seconds each is progress."""
    watched = Watched()
    for step in range(1, 73):
        watched.dog.begin(decode(step))
        await watched.passes(50)
        watched.dog.end()
    assert watched.alarms == []


async def test_long_prefills_are_no_hang() -> None:
    """Prefills that take thirty times the median step, beyond the floor, are judged by what such steps took before, or by smaller ones."""
    watched = Watched()
    for step in range(1, 40):
        watched.dog.begin(decode(step))
        await watched.passes(5)
        watched.dog.end()
    watched.dog.begin(decode(40, Grant(1, 2048)))
    await watched.passes(150)
    watched.dog.end()
    assert watched.alarms == []
    watched.dog.begin(decode(41, Grant(1, 2048)))
    await watched.passes(20 * 150 - 1)
    assert watched.alarms == []
    await watched.passes(3)
    assert len(watched.alarms) == 1


async def test_what_a_restart_did_not_cure_is_given_more_time() -> None:
    """The factor that grows with alarms in a row multiplies what is allowed."""
    watched = Watched()
    watched.dog.factor = 4
    watched.dog.begin(decode(1))
    await watched.passes(4 * FLOOR - 1)
    assert watched.alarms == []
    await watched.passes(2)
    assert len(watched.alarms) == 1


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=80), st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_patience_is_never_less_than_the_floor(times: list[float], size: int, other: int) -> None:
    """Whatever was seen, of whatever class; and of the class that was seen twenty medians are allowed."""
    timeout = AdaptiveTimeout(FLOOR)
    for seconds in times:
        timeout.observe(size, seconds)
    assert timeout.seconds(other) >= FLOOR
    recent = sorted(times[-65:])
    middle = (recent[len(recent) // 2] + recent[(len(recent) - 1) // 2]) / 2
    assert abs(timeout.seconds(size) - max(FLOOR, 20 * middle)) < 1e-6 * max(FLOOR, 20 * middle)


@given(st.lists(shard_requests, max_size=3), st.lists(st.integers(0, 4096), max_size=3))
def test_a_turn_is_as_large_as_the_step_that_it_reads(asked: list[object], takes: list[int]) -> None:
    """With a step in flight it is the one before."""
    sizes = StepSizes()
    grants = tuple(Grant(id, take) for id, take in enumerate(takes))
    assert sizes.of(Turn(launch=Prefill(1, tuple(asked), None, grants))) == 0  # type: ignore[arg-type]
    whole = sum(takes) + sum(item.request.take for item in asked)  # type: ignore[attr-defined]
    assert sizes.of(Turn(launch=Decode(2, (1,)), read=1)) == whole
    assert sizes.of(Turn(read=2)) == 0
