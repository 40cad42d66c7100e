"""Constrained answers on the reference backend: valid, whatever the scheduler does, and nobody else's business."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.grammar.device import answer, device, request
from tests.grammar.schemas import check_answer, grammars, json_grammar, regex_grammar
from tests.scheduler.device import Device, launched_ids
from tgi_core.backend import OutOfMemory, WarmupPlan
from tgi_core.grammar import Grammar, GrammarKind
from tgi_core.grammar.compiler import GrammarCompiler
from tgi_core.scheduler import GenerationRequest
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import FinishReason, Stopping

SMALL = WarmupPlan(max_rows=4, max_row_tokens=124, max_step_tokens=16, num_blocks=40, block_size=4)
PERSON = json_grammar(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["name", "age"],
    }
)
BAD = Grammar(GrammarKind.REGEX, "(?=a)b")

seeds = st.none() | st.integers(0, 2**64 - 1)
scripts = st.lists(
    st.builds(
        request,
        st.none() | grammars,
        st.lists(st.integers(7, 200), min_size=1, max_size=20).map(tuple),
        seeds,
        st.integers(20, 100),
    ),
    min_size=1,
    max_size=5,
)
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def alone(tokenizer: Tokenizer, compiler: GrammarCompiler, wanted: GenerationRequest) -> list[int]:
    """What a request gets when it has a large device to itself."""
    one = device(tokenizer, compiler, asynchronous=False)
    key = one.scheduler.add(wanted)
    one.run()
    return one.tokens[key]


@pytest.mark.parametrize("asynchronous", [True, False])
@given(script=scripts)
@settings(relaxed, max_examples=60)
def test_every_complete_answer_is_valid(
    demo_tokenizer: Tokenizer, compiler: GrammarCompiler, asynchronous: bool, script: list[GenerationRequest]
) -> None:
    """In a pool so small that rows are preempted, answers keep their grammars, and everyone gets the tokens they would get alone."""
    one = device(demo_tokenizer, compiler, SMALL, asynchronous=asynchronous)
    wanted = {one.scheduler.add(item): item for item in script}
    one.run()
    for key, item in wanted.items():
        assert one.tokens[key] == alone(demo_tokenizer, compiler, item)
        text = answer(one, key)
        if item.grammar is not None and text is not None:
            check_answer(item.grammar, text)
    assert one.scheduler.snapshot.blocks_free == one.scheduler.snapshot.blocks_total


@pytest.mark.parametrize("asynchronous", [True, False])
def test_preempted_rows_pick_their_grammars_up(demo_tokenizer: Tokenizer, compiler: GrammarCompiler, asynchronous: bool) -> None:
    """Rows that are sent back to the queue in the middle of an answer go on in the middle of their grammar."""
    grammar = regex_grammar("(?:[0-9]{3}-){12}[a-z]{20}")
    one = device(demo_tokenizer, compiler, SMALL, asynchronous=asynchronous)
    keys = [one.scheduler.add(request(grammar, (9 + index,) * 5, seed=index, max_new_tokens=100)) for index in range(4)]
    one.run()
    admissions = sum(len(launched_ids(turn)) for turn in one.turns)
    assert admissions > len(keys), "nothing was preempted"
    for key in keys:
        text = answer(one, key)
        assert text is not None
        check_answer(grammar, text)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_preempted_rows_keep_their_minimum(demo_tokenizer: Tokenizer, compiler: GrammarCompiler, asynchronous: bool) -> None:
    """Rows that are sent back to the queue have no stop token before their minimum, and end at the first one after it."""
    one = device(demo_tokenizer, compiler, SMALL, asynchronous=asynchronous)
    stops = tuple(range(0, demo_tokenizer.vocab_size, 4))
    stopping = Stopping(100, ignore_eos=True, stop_ids=stops, min_new_tokens=50)
    wanted = [replace(request(None, (9 + index,) * 5, seed=index), stopping=stopping) for index in range(4)]
    keys = [one.scheduler.add(each) for each in wanted]
    one.run()
    assert sum(len(launched_ids(turn)) for turn in one.turns) > len(keys), "nothing was preempted"
    for key, each in zip(keys, wanted, strict=True):
        made = one.tokens[key]
        assert made == alone(demo_tokenizer, compiler, each)
        assert [place for place, id in enumerate(made) if id in stops] == [len(made) - 1] and len(made) > 50


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_failed_step_loses_no_place(demo_tokenizer: Tokenizer, compiler: GrammarCompiler, asynchronous: bool) -> None:
    """After the device ran out of memory in the middle, the request ends with the very tokens that it would have had."""
    wanted = request(PERSON, seed=3)
    one = device(demo_tokenizer, compiler, asynchronous=asynchronous, faults={4: OutOfMemory("full")})
    key = one.scheduler.add(wanted)
    one.run()
    assert one.tokens[key] == alone(demo_tokenizer, compiler, wanted)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_bad_grammar_is_its_requests_own_error(
    demo_tokenizer: Tokenizer, compiler: GrammarCompiler, asynchronous: bool
) -> None:
    """31 mates, constrained or not, get what they get alone; the request with the bad grammar gets its error."""
    one = device(demo_tokenizer, compiler, asynchronous=asynchronous)
    bad = one.scheduler.add(request(BAD))
    mates = {
        one.scheduler.add(item): item
        for item in (request(PERSON if index % 2 else None, (9 + index, 8), seed=index, max_new_tokens=24) for index in range(31))
    }
    one.run()
    assert str(one.ended[bad].error).startswith("grammar is not valid: look-around") and bad not in one.tokens
    expected = {key: alone(demo_tokenizer, compiler, item) for key, item in list(mates.items())[:6]}
    assert {key: one.tokens[key] for key in expected} == expected
    assert all(one.ended[key].error is None for key in mates)


def ended_by(one: Device, key: int) -> FinishReason:
    """How a request ended."""
    generation = one.ended[key].generation
    assert generation is not None and generation.finished is not None
    return generation.finished.finish_reason


def test_the_end_of_a_grammar_is_the_end_of_the_answer(demo_tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    """Where nothing may follow, the next token is one that ends a text, even if the request ignores those."""
    assert len(demo_tokenizer.eos_ids) > 1
    one = device(demo_tokenizer, compiler)
    wanted = request(regex_grammar("blue"))
    ignoring = GenerationRequest.of((1, 2), wanted.sampling, type(wanted.stopping)(50, ignore_eos=True), grammar=wanted.grammar)
    keys = [one.scheduler.add(wanted), one.scheduler.add(ignoring)]
    one.run()
    for key in keys:
        assert (answer(one, key), ended_by(one, key)) == ("blue", FinishReason.EOS_TOKEN)
        assert one.tokens[key][-1] in demo_tokenizer.eos_ids


def test_masks_do_not_leak_into_later_requests(demo_tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    """Rows and blocks of constrained requests, ended or cancelled, serve free ones and other grammars without a trace."""
    one = device(demo_tokenizer, compiler, WarmupPlan(max_rows=1, max_row_tokens=124, num_blocks=31, block_size=4))
    first = one.scheduler.add(request(regex_grammar("[01]{40}")))
    for _ in range(8):
        one.turn()
    one.scheduler.cancel(first)
    items = [request(None, seed=1, max_new_tokens=12), request(PERSON, seed=2), request(None, max_new_tokens=12)]
    keys = [one.scheduler.add(item) for item in items]
    one.run()
    assert [one.tokens[key] for key in keys] == [alone(demo_tokenizer, compiler, item) for item in items]
    assert one.server.masks is not None and not one.server.masks.live


def test_without_masks_a_grammar_is_refused(demo_tokenizer: Tokenizer) -> None:
    """A shard whose backend has no masks refuses the request by name of the feature; no text is made without its grammar."""
    from tests.scheduler.device import device as plain

    one = plain(demo_tokenizer)
    key = one.scheduler.add(request(PERSON))
    one.run()
    assert str(one.ended[key].error) == "request 1 needs masks" and key not in one.tokens


def test_the_order_of_properties_is_the_schemas(demo_tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    """An answer has the listed properties, in their order, and none that the schema does not list."""
    one = device(demo_tokenizer, compiler)
    keys = [one.scheduler.add(request(PERSON, seed=seed)) for seed in range(5)]
    one.run()
    for key in keys:
        text = answer(one, key)
        assert text is not None and list(json.loads(text)) == ["name", "age"]
