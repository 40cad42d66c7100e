"""Constrained answers of a real model on the CPU backend."""

from __future__ import annotations

import pytest

from tests.grammar.device import answer, request
from tests.grammar.schemas import check_answer, json_grammar, regex_grammar
from tests.scheduler.device import Device, quiet
from tgi_core.backend import OpenOptions, Sampling, WarmupPlan
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.registry import find
from tgi_core.backend.session import Session
from tgi_core.grammar import Grammar, parse_grammar
from tgi_core.grammar.compiler import GrammarCompiler
from tgi_core.model_files import DEMO
from tgi_core.scheduler import GenerationRequest, Scheduler
from tgi_core.server.masks import GrammarMasks
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo, Stopping

ANY_OBJECT = parse_grammar({"type": "json_object"})
CITY = json_grammar(
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "country": {"enum": ["France", "Japan", "Peru"]},
            "population": {"type": "integer", "minimum": 0, "maximum": 40_000_000},
            "sights": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        },
        "required": ["city", "country", "population", "sights"],
    }
)
GRAMMARS = [
    CITY,
    regex_grammar("(?:red|green|blue), (?:red|green|blue)"),
    regex_grammar("\\d{4}-\\d{2}-\\d{2}"),
    json_grammar({"enum": [1, 2, "größer", None]}),
    json_grammar({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5}),
]


def open_device(tokenizer: Tokenizer, compiler: GrammarCompiler) -> Device:
    """The demo model with a pool in which eight long answers do not fit together."""
    masks = GrammarMasks(compiler)
    session = Session(find("cpu").open(OpenOptions(str(DEMO), dtype="float32", masks=masks), quiet), "cpu")
    info = ShardInfo("demo", "cpu", "cpu", "float32", (1, 0), session.capabilities())
    server = ModelServer(session, tokenizer, info, masks)
    capacity = server.warmup(WarmupPlan(max_rows=8, max_row_tokens=192, num_blocks=24), quiet)
    return Device(Scheduler(info.capabilities, capacity), server, ReferenceSession())


def chat(tokenizer: Tokenizer, text: str, grammar: Grammar | None, seed: int | None) -> GenerationRequest:
    """A request of 80 tokens at most; greedy without a seed."""
    sampling = Sampling() if seed is None else Sampling(do_sample=True, temperature=0.9, top_p=0.95, seed=seed)
    return GenerationRequest.of(tokenizer.encode(text).ids, sampling, Stopping(80), grammar=grammar)


def test_every_complete_answer_is_valid(demo_tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    """Greedy and sampled, beside free mates: what ends by itself is what its grammar asks for, and most answers do."""
    one = open_device(demo_tokenizer, compiler)
    prompts = ["Tell me about a city.", "Which colours do you like?", "Name a date.", "Once upon a time"]
    constrained: dict[int, Grammar] = {}
    for index, grammar in enumerate(GRAMMARS * 3):
        seed = None if index < len(GRAMMARS) else index
        constrained[one.scheduler.add(chat(demo_tokenizer, prompts[index % 4], grammar, seed))] = grammar
        one.scheduler.add(chat(demo_tokenizer, prompts[index % 3], None, seed))
    one.run()
    complete = {key: text for key in constrained if (text := answer(one, key)) is not None}
    for key, text in complete.items():
        check_answer(constrained[key], text)
    assert len(complete) >= len(constrained) - 2
    one.server.session.close()  # the compiler is shared


@pytest.mark.parametrize("seed", [None, 7])
def test_free_mates_notice_nothing(demo_tokenizer: Tokenizer, compiler: GrammarCompiler, seed: int | None) -> None:
    """A free request makes the same tokens beside constrained ones, good and bad, as by itself; so does a constrained one."""
    wanted = [chat(demo_tokenizer, "Once upon a time", None, seed), chat(demo_tokenizer, "Name a date.", ANY_OBJECT, seed)]
    alone = []
    for item in wanted:
        one = open_device(demo_tokenizer, compiler)
        key = one.scheduler.add(item)
        one.run()
        alone.append(one.tokens[key])
        one.server.session.close()
    one = open_device(demo_tokenizer, compiler)
    bad = one.scheduler.add(request(regex_grammar("(?=a)b")))
    keys = [one.scheduler.add(item) for item in wanted]
    one.scheduler.add(request(CITY, seed=1, max_new_tokens=60))
    one.run()
    assert [one.tokens[key] for key in keys] == alone
    assert "look-around" in str(one.ended[bad].error)
    one.server.session.close()
