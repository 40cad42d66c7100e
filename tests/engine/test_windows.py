"""Models whose layers see a window: their cache group gives blocks back behind each row, and every row makes the tokens it makes alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.engine.ahead.opened import open_on
from tests.engine.tiny_models import VOCAB, open_cpu, save_tiny
from tests.scheduler.checks import check_books
from tests.scheduler.device import Device, Script, play, request
from tests.scheduler.test_prefixes import ask
from tgi_core.backend import CacheKind, Feature, WarmupPlan
from tgi_core.scheduler import GenerationRequest, Scheduler, SchedulerOptions
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Prefill, ShardInfo

WINDOW, ROWS, NEW = 24, 32, 20
PLAN = WarmupPlan(max_rows=ROWS, max_row_tokens=320, max_step_tokens=96)
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {"num_hidden_layers": 4, "layer_types": MIXED},
    "gemma3_text": {"num_hidden_layers": 4, "layer_types": MIXED},
    "gpt_oss": {"num_hidden_layers": 4, "layer_types": MIXED},
    "qwen3": {"num_hidden_layers": 4, "layer_types": MIXED, "use_sliding_window": True},
    "mistral": {"num_hidden_layers": 2},
}
"""The first have layers of both kinds, the third with sinks; all layers of the last have the window. The CPU backend runs the last two
in one native call per step."""
OPENERS = {"torch": partial(open_on, None), "native": partial(open_cpu, dtype="float32")}
"""Through transformers' modules with torch's attention, and as the CPU backend runs it."""


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A checkpoint of each family."""
    sizes = {"sliding_window": WINDOW, "max_position_embeddings": 320, **FAMILIES[request.param]}
    return request.param, save_tiny(request.param, tmp_path_factory.mktemp(request.param), **sizes)


def served(how: str, folder: Path, tokenizer: Tokenizer, plan: WarmupPlan, options: SchedulerOptions | None = None) -> Device:
    """A scheduler over the model."""
    session, capacity = OPENERS[how](folder, plan)
    info = ShardInfo("tiny", "cpu", "cpu", "float32", (1, 8), session.capabilities())
    scheduler = Scheduler(info.capabilities, capacity, options)
    return Device(scheduler, ModelServer(session, tokenizer, info), session)  # type: ignore[arg-type]


def wanted(number: int) -> GenerationRequest:
    """Request `number`: a prompt of up to ten windows, greedy or with a seed."""
    prompt = tuple((number * 37 + place * place * 11 + place) % (VOCAB - 2) + 2 for place in range(1 + number * 53 % 250))
    return request(prompt, NEW, seed=number if number % 2 else None)


def generated(folder: Path, prompts: dict[int, tuple[int, ...]]) -> dict[int, list[int]]:
    """Greedy tokens of transformers' own `generate`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    made = {}
    for number, prompt in prompts.items():
        ids = torch.tensor([prompt])
        given: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
        made[number] = model.generate(ids, max_new_tokens=NEW, **given)[0, -NEW:].tolist()
    return made


@pytest.mark.parametrize("how", OPENERS)
def test_rows_together_equal_rows_alone(model: tuple[str, Path], how: str, demo_tokenizer: Tokenizer) -> None:
    """32 rows of many windows, greedy and seeded, in chunks and together: each makes the tokens that it makes alone, the greedy ones
    those of `generate`, while the window group has a third of the blocks that all positions take."""
    family, folder = model
    one = served(how, folder, demo_tokenizer, PLAN)
    *others, windows = one.scheduler._capacity.groups
    assert (windows.kind, windows.window) == (CacheKind.WINDOW, WINDOW)
    assert [group.kind for group in others] == ([] if family == "mistral" else [CacheKind.FULL])
    assert windows.num_blocks < ROWS * 320 // 16 / 3
    keys = {one.scheduler.add(wanted(number)): number for number in range(ROWS)}
    while not one.scheduler.idle:
        one.turn()
        check_books(one.scheduler)
    made = {number: one.tokens[key] for key, number in keys.items()}
    alone = served(how, folder, demo_tokenizer, PLAN, SchedulerOptions(prefix_caching=False))
    assert made == {number: ask(alone, wanted(number))[0] for number in range(ROWS)}
    greedy = {number: wanted(number).input_ids for number in range(0, ROWS, 2)}
    assert generated(folder, greedy) == {number: made[number] for number in greedy}


def script() -> Script:
    """Requests with common beginnings of several windows; every fourth client leaves early."""
    items: Script = []
    for index in range(16):
        stem = tuple((7 * place + place // 3) % VOCAB for place in range(90)) if index % 3 == 0 else ()
        tail = tuple((5 * index + 3 * place) % VOCAB for place in range(1 + 29 * index % 113))
        item = request((*stem, *tail), 3 + 7 * index % 40, seed=index if index % 2 else None)
        items.append((index % 3, item, 2 + index % 5 if index % 4 == 3 else None))
    return items


@pytest.mark.parametrize("how", OPENERS)
def test_preempted_and_continued_rows_keep_their_tokens(model: tuple[str, Path], how: str, demo_tokenizer: Tokenizer) -> None:
    """In a cache that does not hold all rows, with prefixes that are shared and evicted: everyone who stays gets what they would get
    alone."""
    tight = WarmupPlan(max_rows=6, max_row_tokens=256, max_step_tokens=32, num_blocks=26, window_blocks=12)
    one = served(how, model[1], demo_tokenizer, tight)
    asked, left = play(one, script())
    check_books(one.scheduler)
    assert one.scheduler.snapshot.blocks_free == one.scheduler.snapshot.blocks_total
    assert any(turn.launch.requests[0].request.cached for turn in one.turns if isinstance(turn.launch, Prefill))
    alone = served(how, model[1], demo_tokenizer, PLAN, SchedulerOptions(prefix_caching=False))
    for key, item in asked.items():
        assert one.ended[key].error is None if key not in left else True
        expected, got = ask(alone, item)[0], one.tokens.get(key, [])
        assert got == (expected[: len(got)] if key in left else expected)


@pytest.mark.parametrize("how", OPENERS)
def test_a_conversation_goes_on_in_its_window(model: tuple[str, Path], how: str, demo_tokenizer: Tokenizer) -> None:
    """The second turn finds all blocks of the first that it needs; its tokens are those of a cold cache, and those of a replaced shard."""
    one = served(how, model[1], demo_tokenizer, PLAN)
    first = tuple((11 * place + place // 7) % VOCAB for place in range(170))
    answer, cached = ask(one, request(first, NEW))
    assert cached == 0
    second = request((*first, *answer, 5, 6, 7), NEW)
    again, cached = ask(one, second)
    assert cached == 176 and Feature.PREFIX_REUSE in one.server.session.capabilities().features
    cold = served(how, model[1], demo_tokenizer, PLAN, SchedulerOptions(prefix_caching=False))
    assert ask(cold, second) == (again, 0)
    key = one.scheduler.add(second)
    for _ in range(6):
        one.turn()
    fresh = served(how, model[1], demo_tokenizer, PLAN)
    one.server, one.session, one.answers = fresh.server, fresh.session, fresh.answers
    one.take(one.scheduler.restart("it was unplugged"))
    one.run()
    assert one.tokens[key] == again


def test_drafts_follow_windows(model: tuple[str, Path], demo_tokenizer: Tokenizer) -> None:
    """A draft model shares the blocks of all positions, where there are such layers, and rejected drafts take nothing back: the tokens
    are those without drafts. (Sinks have no kernel here whose bits are the same for several tokens at once, so there are no drafts.)"""
    family, folder = model
    plan = WarmupPlan(max_rows=4, max_row_tokens=256, max_step_tokens=32, draft=4)
    session, capacity = OPENERS["native"](folder, plan, speculator=str(folder))
    if family == "gpt_oss":
        assert capacity.draft == 0
        return
    assert [group.kind for group in capacity.groups] == (
        [CacheKind.FULL] if family == "mistral" else [CacheKind.FULL, CacheKind.WINDOW]
    )
    info = ShardInfo("tiny", "cpu", "cpu", "float32", (1, 8), session.capabilities())
    one = Device(Scheduler(info.capabilities, capacity), ModelServer(session, demo_tokenizer, info), session)  # type: ignore[arg-type]
    items = [request(tuple((7 * place + k) % 9 + 2 for place in range(60 + 30 * k)), 60) for k in range(4)]
    keys = [one.scheduler.add(item) for item in items]
    while not one.scheduler.idle:
        one.turn()
        check_books(one.scheduler)
    assert any(grant.drafts for turn in one.turns if turn.launch is not None for grant in turn.launch.grants)
    plain = served("native", folder, demo_tokenizer, PLAN, SchedulerOptions(prefix_caching=False))
    assert [one.tokens[key] for key in keys] == [ask(plain, item)[0] for item in items]
