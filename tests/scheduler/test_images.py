"""Images and prompts that must run whole: no step ends inside one, and none waits forever."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.scheduler.device import Device, alone, device, request
from tgi_core.backend import Mixing, WarmupPlan
from tgi_core.scheduler import GenerationRequest
from tgi_core.scheduler.prefill_budget import image_left, keep_images_whole
from tgi_core.scheduler.prefix import ImageSpan
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Prefill

STEP = 24
PLAN = WarmupPlan(max_rows=16, max_row_tokens=256, max_step_tokens=STEP, block_size=4)

parts = st.lists(st.tuples(st.integers(0, 40), st.integers(1, STEP), st.sampled_from("abc")), min_size=1, max_size=3)
"""Images, each with the length of the text before it, its own length, and which it is."""


def prompt(images: list[tuple[int, int, str]], after: int) -> tuple[tuple[int, ...], tuple[ImageSpan, ...]]:
    """Tokens, and where the images are."""
    tokens, spans = list[int](), list[ImageSpan]()
    for before, length, which in images:
        tokens += [3 + i % 5 for i in range(before)]
        spans.append(ImageSpan(len(tokens), len(tokens) + length, which.encode() * 16))
        tokens += [2] * length
    return (*tokens, *([7] * after)), tuple(spans)


def run_whole(one: Device, limit: int = 3000) -> None:
    """Until all is done; no step may end inside an image."""
    for _ in range(limit):
        if one.scheduler.idle:
            return
        one.turn()
        for sequence in one.scheduler.sequences.values():
            for image in sequence.request.image_spans:
                assert not image.start < sequence.computed < image.end
    raise AssertionError("not idle")


@settings(max_examples=60)
@given(st.lists(st.tuples(parts, st.integers(0, 30)), min_size=1, max_size=6), st.sampled_from([Mixing.EAGER, Mixing.NONE]))
def test_no_step_cuts_an_image(
    demo_tokenizer: Tokenizer, prompts: list[tuple[list[tuple[int, int, str]], int]], mixing: Mixing
) -> None:
    """Whatever runs beside them, images run whole, and every request gets the tokens that it gets alone."""
    one = device(demo_tokenizer, PLAN, whole_images=True, mixing=mixing)
    wanted = dict[int, GenerationRequest]()
    for images, after in prompts:
        tokens, spans = prompt(images, after)
        made = request(tokens, 6, image_spans=spans)
        wanted[one.scheduler.add(made)] = made
    run_whole(one)
    assert {key: one.tokens[key] for key in wanted} == {key: alone(demo_tokenizer, made) for key, made in wanted.items()}


def test_an_image_as_long_as_a_step_beside_decoding_rows(demo_tokenizer: Tokenizer) -> None:
    """The newest rows sit out for a step; without that it would wait until they end."""
    one = device(demo_tokenizer, PLAN, whole_images=True)
    rows = [one.scheduler.add(request((5, number, 9), 200)) for number in range(10)]
    for _ in range(20):
        one.turn()
    tokens, spans = prompt([(2, STEP, "a")], 3)
    key = one.scheduler.add(request(tokens, 2, image_spans=spans))
    for _ in range(40):
        one.turn()
    assert key in one.ended and not one.ended.keys() & set(rows)


def test_a_prefix_that_ends_in_an_image(demo_tokenizer: Tokenizer) -> None:
    """Its blocks are those of the whole image, so the rest of the image runs after them."""
    one = device(demo_tokenizer, PLAN, whole_images=True)
    tokens, spans = prompt([(2, 20, "a")], 0)
    for _ in range(2):
        key = one.scheduler.add(request(tokens, 3, image_spans=spans))
        run_whole(one)
        assert key in one.ended
    assert one.scheduler.snapshot.hit_tokens == 20


def test_an_image_longer_than_a_step(demo_tokenizer: Tokenizer) -> None:
    """It is refused, unless images can be cut."""
    tokens, spans = prompt([(2, STEP + 1, "a")], 3)
    with pytest.raises(ValueError, match=f"an image has {STEP + 1} tokens; the maximum is {STEP}"):
        device(demo_tokenizer, PLAN, whole_images=True).scheduler.add(request(tokens, 2, image_spans=spans))
    one = device(demo_tokenizer, PLAN)
    one.scheduler.add(request(tokens, 2, image_spans=spans))
    one.run()


prompts = st.lists(st.integers(3, 5), min_size=1, max_size=STEP).map(tuple)


@settings(max_examples=40, deadline=None)
@given(st.lists(prompts, min_size=1, max_size=6), st.sampled_from([Mixing.EAGER, Mixing.NONE]), st.integers(20, 200))
def test_no_step_cuts_a_prompt(demo_tokenizer: Tokenizer, drawn: list[tuple[int, ...]], mixing: Mixing, blocks: int) -> None:
    """Also after its row was preempted: the prompt runs again whole, and the answer after it in chunks. Every request gets the tokens that
    it gets alone."""
    one = device(demo_tokenizer, replace(PLAN, num_blocks=blocks), whole_prompts=True, mixing=mixing)
    wanted = {one.scheduler.add(made): made for made in (request(tokens, 40, whole_prompt=True) for tokens in drawn)}
    run_whole(one)
    assert {key: one.tokens[key] for key in wanted} == {key: alone(demo_tokenizer, made) for key, made in wanted.items()}


def test_rows_with_whole_prompts_are_preempted(demo_tokenizer: Tokenizer) -> None:
    """Of rows that outgrow the cache, some begin again: with a whole prompt, and an answer that does not fit in the same step."""
    one = device(demo_tokenizer, replace(PLAN, num_blocks=20), whole_prompts=True)
    keys = [one.scheduler.add(request((5, number, 9) * 5, 40, whole_prompt=True)) for number in range(3)]
    run_whole(one)
    again = [each for turn in one.turns if isinstance(turn.launch, Prefill) for each in turn.launch.requests]
    continued = [each.request for each in again if len(each.request.tokens) > each.request.prompt_len]
    assert any(len(each.tokens) > STEP for each in continued)
    assert all(each.cached + each.take >= each.prompt_len == 15 for each in continued)
    assert one.ended.keys() == set(keys)


def test_blocks_of_a_whole_prompt_serve_that_prompt_only(demo_tokenizer: Tokenizer) -> None:
    """Another prompt that begins with it makes other keys and values of the same tokens."""
    one, tokens = device(demo_tokenizer, PLAN, whole_prompts=True), tuple(range(3, 23))
    hits = []
    for each in (tokens, tokens, (*tokens, 5), tokens):
        one.scheduler.add(request(each, 3, whole_prompt=True))
        run_whole(one)
        hits.append(one.scheduler.snapshot.hit_tokens)
    assert hits == [0, 16, 16, 32]


def test_a_whole_prompt_longer_than_a_step(demo_tokenizer: Tokenizer) -> None:
    """It is refused."""
    scheduler = device(demo_tokenizer, PLAN, whole_prompts=True).scheduler
    scheduler.add(request((5,) * STEP, 20, whole_prompt=True))
    with pytest.raises(ValueError, match=f"the prompt has {STEP + 1} tokens; it must have from 1 to {STEP}"):
        scheduler.add(request((5,) * (STEP + 1), 20, whole_prompt=True))


def test_a_whole_prompt_beside_decoding_rows(demo_tokenizer: Tokenizer) -> None:
    """One as long as a step begins at once: the newest rows sit out for that step."""
    one = device(demo_tokenizer, PLAN, whole_prompts=True)
    rows = [one.scheduler.add(request((5, number, 9), 200, whole_prompt=True)) for number in range(10)]
    for _ in range(20):
        one.turn()
    key = one.scheduler.add(request((5,) * STEP, 2, whole_prompt=True))
    for _ in range(5):
        one.turn()
    assert key in one.ended and not one.ended.keys() & set(rows)


def test_cuts() -> None:
    """Before an image, after it, or not at all."""
    images = (ImageSpan(4, 10, b""), ImageSpan(12, 20, b""))
    cases = {(0, 3): 3, (0, 4): 4, (0, 5): 4, (0, 10): 10, (0, 11): 11, (0, 15): 12, (4, 2): 6, (6, 2): 4, (12, 7): 0, (20, 5): 5}
    assert {case: keep_images_whole(*case, room=7, images=images) for case in cases} == cases
    assert [image_left(start, images) for start in (3, 4, 9, 10, 12)] == [0, 6, 1, 0, 8]


@settings(max_examples=40)
@given(st.lists(parts, min_size=1, max_size=5), st.booleans())
@example([[(0, 4, "a")], [(0, 1, "a"), (0, 1, "a")], [(0, 4, "a")]], False)
@example([[(30, 11, "a"), (2, 1, "a"), (34, 24, "a")], [(0, 11, "a")], [(27, 1, "a")], [(0, 1, "a")]], True)
def test_one_image_at_a_time_beside_decoding_rows(
    demo_tokenizer: Tokenizer, prompts: list[list[tuple[int, int, str]]], whole: bool
) -> None:
    """While rows decode, at most one image begins in a step, so that the vision tower runs once between two of their tokens; they miss no
    more than two steps in a row, and all prompts with images end."""
    one = device(demo_tokenizer, replace(PLAN, max_step_tokens=2 * STEP), whole_images=whole)
    rows = [one.scheduler.add(request((5, number, 9), 120)) for number in range(8)]
    for _ in range(4):
        one.turn()
    keys = [one.scheduler.add(request(tokens, 2, image_spans=spans)) for tokens, spans in (prompt(each, 1) for each in prompts)]
    begun, missed = dict[tuple[int, int], int](), dict.fromkeys(rows, 0)
    for turn in range(100):
        made = {key: len(one.tokens[key]) for key in rows}
        one.turn()
        for key in rows:
            missed[key] = 0 if len(one.tokens[key]) > made[key] else missed[key] + 1
            assert missed[key] <= 2 or key in one.ended
        for key, sequence in one.scheduler.sequences.items():
            for image in sequence.request.image_spans:
                if sequence.computed > image.start >= sequence.cached:  # the tower does not run for one in a cached prefix
                    begun.setdefault((key, image.start), turn)
        if all(key in one.ended for key in keys):
            break
    assert all(key in one.ended for key in keys)
    assert len(begun) == len(set(begun.values())) or any(key in one.ended for key in rows)


def test_text_does_not_wait_behind_images(demo_tokenizer: Tokenizer) -> None:
    """A prompt of text alone runs while a prompt before it waits to begin its next image."""
    one = device(demo_tokenizer, PLAN)
    one.scheduler.add(request((5, 6, 9), 50))
    for _ in range(3):
        one.turn()
    tokens, spans = prompt([(0, 3, "a"), (0, 3, "b"), (0, 3, "c")], 1)
    first, text = one.scheduler.add(request(tokens, 2, image_spans=spans)), one.scheduler.add(request((7, 8), 2))
    for _ in range(2):
        one.turn()
    assert text in one.tokens and first not in one.tokens
