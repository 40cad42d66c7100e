"""Prefix reuse: what was computed is not computed again, nobody's text changes, and tenants share nothing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.device import Device, alone, device, play, request, scheduled
from tgi_core.backend import OutOfMemory, OutputOptions, WarmupPlan
from tgi_core.scheduler import GenerationRequest, SchedulerOptions
from tgi_core.scheduler.prefix import ImageSpan, PrefixIndex
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Prefill

SMALL = WarmupPlan(max_rows=4, max_row_tokens=48, max_step_tokens=16, num_blocks=24, block_size=4)
PROMPT = tuple(range(100, 140))

stems = st.sampled_from([PROMPT[:12], PROMPT[:20], (7,) * 16])
prompts = st.builds(lambda stem, tail: stem + tuple(tail), stems, st.lists(st.integers(0, 3), min_size=1, max_size=10))
requests = st.builds(
    request,
    prompts,
    st.integers(1, 16),
    st.none() | st.integers(0, 9),
    salt=st.sampled_from(["", "a"]),
    priority=st.integers(0, 2),
)
arrivals = st.lists(st.tuples(st.integers(0, 6), requests, st.none() | st.integers(0, 12)), min_size=2, max_size=10)


def ask(one: Device, item: GenerationRequest) -> tuple[list[int], int]:
    """Its tokens, and how many tokens of it were found in the cache."""
    key = one.scheduler.add(item)
    turns = len(one.turns)
    one.run()
    brought = [sent for turn in one.turns[turns:] if isinstance(turn.launch, Prefill) for sent in turn.launch.requests]
    return one.tokens[key], brought[0].request.cached


@given(script=arrivals, failing=st.none() | st.integers(1, 12))
@settings(max_examples=80, deadline=None)
def test_shared_prefixes_change_no_token(
    demo_tokenizer: Tokenizer, script: list[tuple[int, GenerationRequest, int | None]], failing: int | None
) -> None:
    """Equal beginnings, preemption, faults and leaving: everyone gets what they would get alone, and every block comes back."""
    faults = {} if failing is None else {failing: OutOfMemory("full")}
    one = device(demo_tokenizer, SMALL, faults=faults)
    wanted, left = play(one, script)
    for key, item in wanted.items():
        expected = alone(demo_tokenizer, item)
        got = one.tokens.get(key, [])
        assert got == (expected[: len(got)] if key in left else expected)
    assert one.scheduler.snapshot.blocks_free == one.scheduler.snapshot.blocks_total == 24


def test_the_second_turn_computes_only_what_is_new(demo_tokenizer: Tokenizer) -> None:
    """A conversation goes on: all full blocks of its 2,000 tokens, prompt and answer, are found; the text is that of a cold cache."""
    plan = WarmupPlan(max_rows=4, max_row_tokens=4096, max_step_tokens=512, num_blocks=512, block_size=16)
    one = device(demo_tokenizer, plan)
    first = tuple(number % 400 for number in range(1900))
    answer, cached = ask(one, request(first, 100))
    assert cached == 0
    second = (*first, *answer, 5, 6, 7)
    again, cached = ask(one, request(second, 20))
    assert cached == (len(first) + len(answer) - 1) // 16 * 16 == 1984
    cold = device(demo_tokenizer, plan, SchedulerOptions(prefix_caching=False))
    assert ask(cold, request(second, 20)) == (again, 0)


def test_a_prompt_is_found_while_its_first_owner_runs(demo_tokenizer: Tokenizer) -> None:
    """Blocks are shared from the moment their rows have been read."""
    one = device(demo_tokenizer)
    one.scheduler.add(request(PROMPT, 30))
    for _ in range(3):
        one.turn()
    assert ask(one, request(PROMPT, 3))[1] > 0


def test_nothing_is_found_that_is_not_yet_computed(demo_tokenizer: Tokenizer) -> None:
    """Two equal prompts in one step share nothing: no block is entered before its rows have been read."""
    one = device(demo_tokenizer)
    keys = [one.scheduler.add(request(PROMPT, 3)) for _ in range(2)]
    turn = one.turn()
    assert isinstance(turn.launch, Prefill) and [sent.request.cached for sent in turn.launch.requests] == [0, 0]
    one.run()
    assert one.tokens[keys[0]] == one.tokens[keys[1]]


def test_salts_and_adapters_share_nothing(demo_tokenizer: Tokenizer) -> None:
    """The same prompt under another salt is computed anew; under the same salt it is found."""
    one = device(demo_tokenizer)
    item = request(PROMPT, 3)
    assert ask(one, item)[1] == 0
    assert ask(one, scheduled(item, salt="tenant"))[1] == 0
    assert ask(one, scheduled(item, salt="tenant"))[1] > 0
    assert ask(one, item)[1] > 0


def test_logprobs_of_the_prompt_need_all_of_it(demo_tokenizer: Tokenizer) -> None:
    """A request that wants logprobs of its prompt computes it, whatever the cache holds."""
    one = device(demo_tokenizer)
    item = request(PROMPT, 3)
    ask(one, item)
    assert ask(one, replace(item, request=replace(item.request, want=OutputOptions(prompt_logprobs=True))))[1] == 0


def test_old_prefixes_make_room(demo_tokenizer: Tokenizer) -> None:
    """Idle prefixes never keep anyone waiting: the least recently used go first, the rest is still found."""
    one = device(demo_tokenizer, SMALL)
    old, new = tuple(range(40)), tuple(range(200, 240))
    ask(one, request(old, 2))
    ask(one, request(new, 2))
    ask(one, request((9,) * 40, 2))  # 24 blocks: 10 + 10 + 10 do not fit
    assert ask(one, request(new, 2))[1] > 0
    assert ask(one, request(old, 2))[1] < 36


images = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.sampled_from([b"a" * 16, b"b" * 16])), max_size=3)


@given(images, images)
def test_keys_depend_on_images(first: list[tuple[int, int, bytes]], second: list[tuple[int, int, bytes]]) -> None:
    """Blocks of equal tokens have equal keys exactly as far as no image in them or before them differs."""
    index, keys, inside = PrefixIndex(4), [], []
    for drawn in (first, second):
        spans = [ImageSpan(start, start + size, digest) for start, size, digest in drawn]
        made: list[bytes] = []
        index.extend(made, b"root", PROMPT, 10, spans)
        keys.append(made)
        inside.append(
            [[span.digest for span in spans if span.start < 4 * place + 4 and span.end > 4 * place] for place in range(10)]
        )
    for place in range(10):
        assert (keys[0][place] == keys[1][place]) == (inside[0][: place + 1] == inside[1][: place + 1])
