"""Devices that pad a prompt's part of a step to one of a few sizes, and devices that run prompts and decoding rows apart."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scheduling import ours, trace
from bench.scheduling.device import Roofline
from tests.scheduler.device import Device, alone, device, request
from tgi_core.backend import Feature, Mixing, WarmupPlan
from tgi_core.scheduler import SchedulerOptions
from tgi_core.scheduler.policy import MOST_PAUSES
from tgi_core.scheduler.prefill_budget import chunk_size, padded_size
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Decode, Prefill, Turn

sizes_of_a_device = st.sets(st.integers(1, 300), min_size=1, max_size=6).map(lambda sizes: tuple(sorted(sizes)))
lengths = st.integers(1, 2000)

NO_CHUNKS = frozenset({Feature.CHUNKED_PREFILL})


@given(lengths, sizes_of_a_device)
def test_padding(take: int, sizes: tuple[int, ...]) -> None:
    """What is computed is no less than asked, less than the largest size more, made of sizes, and needs no more padding itself."""
    computed = padded_size(take, sizes)
    assert take <= computed < take + sizes[-1]
    assert computed % sizes[-1] in (0, *sizes)
    assert padded_size(computed, sizes) == computed
    assert padded_size(take + 1, sizes) >= computed
    assert padded_size(take, ()) == take


@given(lengths, st.integers(0, 2000), sizes_of_a_device)
def test_a_cut(left: int, room: int, sizes: tuple[int, ...]) -> None:
    """It fits with its padding; it is the whole rest if that fits; otherwise it needs no padding, and no larger size would fit."""
    take = chunk_size(left, room, sizes)
    assert 0 <= take <= left and padded_size(take, sizes) <= room
    assert (take == left) == (padded_size(left, sizes) <= room)
    if take < left:
        assert take == max((size for size in sizes if size <= room), default=0)
        assert take > 0 or room < sizes[0]


@given(lengths, st.integers(1, 2000), sizes_of_a_device)
def test_all_cuts_of_a_prompt(left: int, room: int, sizes: tuple[int, ...]) -> None:
    """Whoever has room for the smallest size gets through a prompt, and only its last part is padded."""
    parts, room = [], max(room, sizes[0])
    while left:
        parts.append(chunk_size(left, room, sizes))
        left -= parts[-1]
        assert parts[-1] > 0
    assert all(padded_size(part, sizes) == part for part in parts[:-1])


@given(lengths, st.integers(0, 2000))
def test_a_device_that_does_not_pad(left: int, room: int) -> None:
    """Gets what fits."""
    assert chunk_size(left, room, ()) == min(left, room)


def parts(turn: Turn) -> list[int]:
    """Tokens of prompts that a turn runs, row by row; a chunk of one token counts as a token of a row that decodes."""
    if not isinstance(turn.launch, Prefill | Decode):
        return []
    new = [item.request.take for item in turn.launch.requests] if isinstance(turn.launch, Prefill) else []
    return [grant.take for grant in turn.launch.grants if grant.take > 1] + new


def test_prompts_are_cut_to_the_sizes(demo_tokenizer: Tokenizer) -> None:
    """The padding is charged to the step: where 40 tokens fit, 32 of 50 run, and then 18, which are padded to 32 and leave 8."""
    one = device(demo_tokenizer, WarmupPlan(max_rows=4, max_row_tokens=128, max_step_tokens=40), takes=(8, 16, 32))
    for start in (1, 2):
        one.scheduler.add(request(tuple(range(start, start + 50)), 3))
    one.run()
    assert [found for turn in one.turns if (found := parts(turn))] == [[32, 8], [18, 8], [32], [2]]
    for key in (1, 2):
        assert one.tokens[key] == alone(demo_tokenizer, request(tuple(range(key, key + 50)), 3))


def test_a_step_full_of_rows_leaves_room_for_the_smallest_size(demo_tokenizer: Tokenizer) -> None:
    """Beside rows that leave less than the smallest size, a prompt runs what the step's limit allows, and does not wait for them."""
    one = device(demo_tokenizer, WarmupPlan(max_rows=8, max_row_tokens=64, max_step_tokens=8), takes=(8,), asynchronous=False)
    for _ in range(5):
        one.scheduler.add(request((1, 2), 30))
    for _ in range(8):
        one.turn()
    one.scheduler.add(request(tuple(range(9)), 2))
    assert [parts(one.turn()) for _ in range(3)] == [[3], [3], [3]]


def test_a_prompt_that_cannot_be_cut_does_not_wait_for_its_padding(demo_tokenizer: Tokenizer) -> None:
    """A prompt that fits a step but, with its padding, does not: it runs, but not beside another."""
    plan = WarmupPlan(max_rows=4, max_row_tokens=64, max_step_tokens=40)
    one = device(demo_tokenizer, plan, without=NO_CHUNKS, takes=(16, 32), asynchronous=False)
    for length in (39, 30, 5):
        one.scheduler.add(request(tuple(range(length, 2 * length)), 2))
    one.run()
    assert [found for turn in one.turns if (found := parts(turn))] == [[39], [30], [5]]


def kinds(one: Device, turns: int) -> list[tuple[str, int]]:
    """What the next steps run, in runs of the same kind; a step that held both would be refused by the tracker."""
    found = ["prompt" if parts(one.turn()) else "decode" for _ in range(turns)]
    return [(kind, len(list(same))) for kind, same in groupby(found)]


@pytest.mark.parametrize(
    ("ratio", "rows", "decodes", "chunks"), [(1.0, 1, 1, 1), (1.0, 4, 4, 1), (0.0, 4, 1, MOST_PAUSES), (9.0, 4, 20, 1)]
)
def test_chunks_and_decoding_rows_take_turns(
    demo_tokenizer: Tokenizer, ratio: float, rows: int, decodes: int, chunks: int
) -> None:
    """By the ratio of prompts that wait to rows that decode, and neither waits for ever."""
    options = SchedulerOptions(waiting_served_ratio=ratio, max_waiting_tokens=20)
    plan = WarmupPlan(max_rows=8, max_row_tokens=500, max_step_tokens=8)
    one = device(demo_tokenizer, plan, options, mixing=Mixing.NONE, asynchronous=False)
    for _ in range(rows):
        one.scheduler.add(request((1, 2), 400))
    while one.scheduler.snapshot.running < rows:
        one.turn()
    one.scheduler.add(request(tuple(range(400)), 2))
    while one.scheduler.snapshot.running == rows:
        one.turn()
    found = kinds(one, 60)
    assert set(found[1:-1]) == {("decode", decodes), ("prompt", chunks)}


@pytest.mark.parametrize("asynchronous", [True, False])
def test_rows_decode_while_prompts_never_end(demo_tokenizer: Tokenizer, asynchronous: bool) -> None:
    """Long prompts keep coming, on a device that cannot mix: the row that decodes gets on, and so does everyone else."""
    plan = WarmupPlan(max_rows=4, max_row_tokens=128, max_step_tokens=8)
    one = device(demo_tokenizer, plan, mixing=Mixing.NONE, asynchronous=asynchronous)
    first = one.scheduler.add(request((1, 2), 20))
    for turn in range(20 * (2 * MOST_PAUSES + 4)):
        if len(one.scheduler.queue) < 2:
            one.scheduler.add(request(tuple(range(turn % 7, turn % 7 + 60)), 2))
        one.turn()
    assert first in one.ended and len(one.ended) > 5


def test_what_it_brings(demo_tokenizer: Tokenizer) -> None:
    """On a trace, for a device that pads to four sizes: little padding, of the blocks of decode rows too, and first tokens come sooner."""
    device_that_pads = Roofline(max_rows=64, max_step_tokens=1088, block_size=128, num_blocks=2000, takes=(128, 256, 512, 1024))
    arrivals = trace.at_rate(trace.make(60, seed=2), 6.0)
    found = []
    for advised in (False, True):
        run = ours.Simulation(device_that_pads, demo_tokenizer, advised)
        waits = sorted(item.first - item.arrival.at for item in run.run(arrivals))
        found.append((run.padding, waits[30]))
        assert run.decode_padding <= 0.11
    (padding, wait), (less, sooner) = found
    assert padding > 0.2 and less < 0.1 and sooner < wait
