"""A shard is lost and replaced: everyone goes on from the tokens they have."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.device import Device, Script, alone, device, quiet, request, shard
from tgi_core.backend import WarmupPlan
from tgi_core.client.result_validator import ResultValidator
from tgi_core.scheduler import GenerationFailed
from tgi_core.scheduler.fault_attribution import MAX_RETRIES
from tgi_core.tokenizer import Tokenizer

PLAN = WarmupPlan(max_rows=4, max_row_tokens=48, max_step_tokens=16, num_blocks=24, block_size=4)

prompts = st.lists(st.integers(0, 3), min_size=1, max_size=30).map(tuple)
requests = st.builds(request, prompts, st.integers(1, 18), st.none() | st.integers(0, 2**64 - 1))
arrivals: st.SearchStrategy[Script] = st.lists(st.tuples(st.integers(0, 6), requests, st.none()), min_size=1, max_size=8)


def replace_shard(one: Device, tokenizer: Tokenizer, answered: bool) -> None:
    """The shard dies, before or after the turn under way was answered, and another takes its place."""
    if not answered:
        one.scheduler.plan()
    _, one.server, one.session = shard(tokenizer)
    one.server.warmup(PLAN, quiet)
    one.answers = ResultValidator()
    one.take(one.scheduler.restart("the shard was killed"))


@given(script=arrivals, deaths=st.lists(st.tuples(st.integers(2, 9), st.booleans()), max_size=4))
@settings(max_examples=60, deadline=None)
def test_nothing_is_lost_and_nothing_repeated(demo_tokenizer: Tokenizer, script: Script, deaths: list[tuple[int, bool]]) -> None:
    """Greedy or sampled, wherever the shard dies: each request ends with the tokens of an undisturbed run."""
    one = device(demo_tokenizer, PLAN)
    wanted = {}
    for wait, item, _ in script:
        for _ in range(wait):
            one.turn()
        wanted[one.scheduler.add(item)] = item
    for turns, answered in deaths:
        for _ in range(turns):
            one.turn()
        replace_shard(one, demo_tokenizer, answered)
    one.run()
    for key, item in wanted.items():
        if one.ended[key].error is None:
            assert one.tokens[key] == alone(demo_tokenizer, item)
        else:
            assert len(deaths) > MAX_RETRIES
    assert one.scheduler.snapshot.blocks_free == one.scheduler.snapshot.blocks_total == 24


def test_a_request_that_kills_every_shard_fails(demo_tokenizer: Tokenizer) -> None:
    """One that runs whenever a shard dies, without a token in between, is not tried for ever."""
    one = device(demo_tokenizer, PLAN)
    key = one.scheduler.add(request((1, 2), 9))
    for _ in range(MAX_RETRIES + 1):
        replace_shard(one, demo_tokenizer, answered=False)
    assert isinstance(one.ended[key].error, GenerationFailed)
    assert one.scheduler.idle
