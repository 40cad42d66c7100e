"""Numbers and lists that multiply work are bounded before the work; tests/router/test_limits walks all fields of all routes besides."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tgi_router.bodies import Parameters

from tests.hostile.server import ServerUnderTest

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
TEXT: dict[str, Any] = {"prompt": "Hi", "max_tokens": 1}
NATIVE: dict[str, Any] = {"max_new_tokens": 1}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {}}}
BEYOND = [2**31 - 1, 2**31, 2**32, 2**63, 2**64, 10**400, -1, -(2**63), 1.5, 1e308, "1", "", True, [], {}, [1]]
"""Wrong for any count."""

OPENAI: list[tuple[str, dict[str, Any], str, list[Any], list[Any]]] = [
    ("/v1/chat/completions", CHAT, "n", [1, 2, 16], [0, 17, 128]),
    ("/v1/completions", TEXT, "n", [1, 2, 16], [0, 17, 128]),
    ("/v1/completions", TEXT, "best_of", [1, 2], [0, 3, 16, 17]),
    ("/v1/completions", TEXT, "logprobs", [0, 1, 20], [21, 100]),
    ("/v1/chat/completions", CHAT, "top_logprobs", [0, 1, 20], [21, 100]),
    ("/v1/chat/completions", CHAT, "max_tokens", [1, 2], [0]),
    ("/v1/chat/completions", CHAT, "max_completion_tokens", [1, 2], [0]),
    ("/v1/completions", TEXT, "max_tokens", [0, 1, 2], [-2]),
]
OF_TGI: list[tuple[str, list[Any], list[Any]]] = [
    ("best_of", [1, 2], [3, 128]), ("top_n_tokens", [0, 1, 20], [21, 50_000]), ("top_k", [1, 2, 2**31 - 1], [0]),
    ("truncate", [1, 499], [0, 500, 501]), ("max_new_tokens", [1, 2], [0]), ("seed", [0, 2**32, 2**64 - 1], []),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "field", "good", "bad"), OPENAI, ids=[f"{case[0]}-{case[2]}" for case in OPENAI])
def test_counts_of_openai(
    instance: ServerUnderTest, path: str, body: dict[str, Any], field: str, good: list[Any], bad: list[Any]
) -> None:
    """What is within the bounds is answered, what is next to them and far beyond is refused without a step."""
    for value in good:
        assert instance.post(path, {**body, field: value}).status_code == 200, value
    for value in bad + [value for value in BEYOND if not (field.startswith("max_") and value in (2**31 - 1, 2**31))]:
        instance.refuses(path, {**body, field: value})


@pytest.mark.parametrize(("field", "good", "bad"), OF_TGI, ids=[case[0] for case in OF_TGI])
def test_counts_of_tgi(instance: ServerUnderTest, field: str, good: list[Any], bad: list[Any]) -> None:
    """The same for TGI's parameters, on each route that has them."""
    routes: list[tuple[str, Any]] = [("/generate", lambda parameters: {"inputs": "Hi", "parameters": parameters})]
    routes.append(("/vertex", lambda parameters: {"instances": [{"inputs": "Hi", "parameters": parameters}]}))
    infer = {"inputs": [{"name": "a", "data": ["Hi"]}], "outputs": [{"name": "b"}]}
    routes.append(("/v2/models/m/infer", lambda parameters: {**infer, "parameters": parameters}))
    allowed = {"seed": {2**31 - 1, 2**31, 2**32, 2**63}, "max_new_tokens": {2**31 - 1, 2**31}, "top_k": {2**31 - 1}}.get(
        field, set()
    )
    drawn = {"do_sample": True} if field == "best_of" else {}
    for path, carry in routes:
        for value in good:
            assert instance.post(path, carry({**NATIVE, **drawn, field: value})).status_code == 200, (path, value)
        for value in bad + [value for value in BEYOND if isinstance(value, list | dict) or value not in allowed]:
            instance.refuses(path, carry({**NATIVE, **drawn, field: value}))


TINY, HUGE = [1.1754944e-38, 1e-10], [1e10, 1e29]
NO_FLOAT32 = [1e-46, 1e-45, 1e-40, 1.1e-38, -1e-45, 3.4028235677973366e38, 1e39, 1e308, -1e39]
"""What becomes 0, denormal, which many devices take for 0, or infinite."""
NUMBERS: list[tuple[str, list[float], list[float]]] = [
    ("temperature", [*TINY, *HUGE, 3.4028234e38], []),
    ("repetition_penalty", [1e-30, 1e-10, *HUGE, 1e30], [1.1754944e-38, 9e-31, 1.1e30, 3.4028234e38]),
    ("top_p", [*TINY, 0.99999994], [0.99999999, *HUGE]),
    ("typical_p", [*TINY, 0.99999994], [0.99999999, *HUGE]),
    ("min_p", [*TINY, 0.0, 1.0], [1.0000002, -1e-10, *HUGE]),
    ("frequency_penalty", [*TINY, -0.0, -2.0], HUGE),
]


@pytest.mark.parametrize(("field", "good", "bad"), NUMBERS, ids=[case[0] for case in NUMBERS])
def test_numbers_that_no_float32_holds(instance: ServerUnderTest, field: str, good: list[float], bad: list[float]) -> None:
    """The ends of what a float32 holds are answered, what is beyond either end is refused without a step, on each route."""
    infer = {"inputs": [{"name": "a", "data": ["Hi"]}], "outputs": [{"name": "b"}]}
    sampled = {**NATIVE, "do_sample": True}
    routes: list[tuple[str, Any]] = [
        ("/generate", lambda given: {"inputs": "Hi", "parameters": {**sampled, **given}}),
        ("/vertex", lambda given: {"instances": [{"inputs": "Hi", "parameters": {**sampled, **given}}]}),
        ("/v2/models/m/infer", lambda given: {**infer, "parameters": {**sampled, **given}}),
    ]
    if field != "typical_p":
        routes.append(("/v1/completions", lambda given: {**TEXT, **given}))
    if field not in ("typical_p", "repetition_penalty"):
        routes.append(("/v1/chat/completions", lambda given: {**CHAT, **given}))
    for path, carry in routes:
        for value in good:
            assert instance.post(path, carry({field: value})).status_code == 200, (path, value)
        for value in [*bad, *NO_FLOAT32]:
            if not (path.startswith("/v1/") and value == 0.99999999):  # 1 is OpenAI's default
                instance.refuses(path, carry({field: value}))


def test_every_number_is_tried() -> None:
    """The list above forgets no field of floating-point numbers."""
    fields = {name for name, field in Parameters.model_fields.items() if "float" in str(field.annotation)}
    assert fields == {case[0] for case in NUMBERS}


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_penalties_and_biases_that_no_float32_holds(instance: ServerUnderTest, path: str, body: dict[str, Any]) -> None:
    """The same for OpenAI's own fields."""
    for value in (1.1754944e-38, -2.0):
        assert instance.post(path, {**body, "presence_penalty": value, "logit_bias": {"5": value}}).status_code == 200
    for value in NO_FLOAT32:
        instance.refuses(path, {**body, "presence_penalty": value})
        instance.refuses(path, {**body, "logit_bias": {"5": value}})
        instance.refuses(path, {**body, "logit_bias": [value]})


LISTS: list[tuple[str, str, Any]] = [
    ("prompts", "/v1/completions", {**TEXT, "prompt": ["x"] * 5}),
    ("many prompts", "/v1/completions", {**TEXT, "prompt": ["x"] * 100_000}),
    ("no prompts", "/v1/completions", {**TEXT, "prompt": []}),
    ("a token id beyond the vocabulary", "/v1/completions", {**TEXT, "prompt": [1, 2, 2048]}),
    ("a negative token id", "/v1/completions", {**TEXT, "prompt": [1, -1]}),
    ("a token id that is a truth value", "/v1/completions", {**TEXT, "prompt": [True]}),
    ("a token id that is a fraction", "/v1/completions", {**TEXT, "prompt": [1.5]}),
    ("many token ids", "/v1/completions", {**TEXT, "prompt": [1] * 100_000}),
    ("lists of token ids", "/v1/completions", {**TEXT, "prompt": [[2**63, -1]] * 1000}),
    ("prompts times n", "/v1/completions", {**TEXT, "prompt": ["x"] * 4, "n": 17}),
    ("stops", "/v1/completions", {**TEXT, "stop": ["x"] * 5}),
    ("many stops", "/v1/chat/completions", {**CHAT, "stop": ["x"] * 100_000}),
    ("a long stop", "/v1/chat/completions", {**CHAT, "stop": ["x" * 1025]}),
    ("stops natively", "/generate", {"inputs": "Hi", "parameters": {**NATIVE, "stop": ["x"] * 5}}),
    ("many stops natively", "/generate", {"inputs": "Hi", "parameters": {**NATIVE, "stop": [""] * 100_000}}),
    ("biases", "/v1/chat/completions", {**CHAT, "logit_bias": {str(number): 1 for number in range(1025)}}),
    ("many biases", "/v1/completions", {**TEXT, "logit_bias": {str(number): 1 for number in range(100_000)}}),
    ("a bias beyond the vocabulary", "/v1/completions", {**TEXT, "logit_bias": {"2048": 1}}),
    ("a bias of a huge id", "/v1/completions", {**TEXT, "logit_bias": {"9" * 5000: 1}}),
    ("a bias of a negative id", "/v1/completions", {**TEXT, "logit_bias": {"-1": 1}}),
    ("a bias of no id", "/v1/completions", {**TEXT, "logit_bias": {"١": 1}}),
    ("too much bias", "/v1/completions", {**TEXT, "logit_bias": {"1": 100.5}}),
    ("a bias without bound", "/v1/completions", {**TEXT, "logit_bias": {"1": 10**400}}),
    ("a bias that is no number", "/v1/completions", {**TEXT, "logit_bias": {"1": "5"}}),
    ("tools", "/v1/chat/completions", {**CHAT, "tools": [TOOL] * 129}),
    ("many tools", "/v1/chat/completions", {**CHAT, "tools": [TOOL] * 20_000}),
    ("no messages", "/v1/chat/completions", {**CHAT, "messages": {}}),
    ("many messages", "/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": "x"}] * 30_000}),
    (
        "many parts",
        "/v1/chat/completions",
        {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": "x "}] * 30_000}]},
    ),
    ("instances", "/vertex", {"instances": [{"inputs": "x"}] * 65}),
    ("many instances", "/vertex", {"instances": [{"inputs": "x"}] * 50_000}),
    ("inputs", "/v2/models/m/infer", {"inputs": [{"name": "a", "data": ["x"]}] * 5, "outputs": [{"name": "b"}] * 5}),
    ("outputs", "/v2/models/m/infer", {"inputs": [{"name": "a", "data": ["x"]}], "outputs": [{"name": "b"}] * 50_000}),
    ("a long model", "/v1/chat/completions", {**CHAT, "model": "x" * 257}),
    ("a megabyte", "/generate", {"inputs": "no end " * 150_000}),
    ("more than the limit", "/generate", {"inputs": "x" * 2_100_000}),
]


@pytest.mark.parametrize(("path", "body"), [case[1:] for case in LISTS], ids=[case[0] for case in LISTS])
def test_lists(instance: ServerUnderTest, path: str, body: Any) -> None:
    """Lists beyond their bounds, and members beyond theirs."""
    instance.refuses(path, body)


COUNTERS: list[dict[str, Any]] = [
    {"min_tokens": 10**9}, {"stop_token_ids": [10**9]}, {"stop_token_ids": [5] * 50_000},
    {"prompt_logprobs": 10**9}, {"allowed_token_ids": [-1]},
    {"bad_words": ["x"] * 10_000}, {"use_beam_search": True}, {"truncate_prompt_tokens": 0}, {"truncate_prompt_tokens": 10**9},
]  # fmt: skip
IGNORED: list[dict[str, Any]] = [
    {"cache_salt": "x" * 1_000_000}, {"cache_salt": "../x"}, {"priority": -(2**63)}, {"vllm_xargs": {"a": "b" * 1000}},
    {"kv_transfer_params": {"remote_host": "127.0.0.1"}}, {"repetition_detection": {}}, {"length_penalty": 1e308},
]  # fmt: skip
OPENAI_ROUTES = [("/v1/chat/completions", {**CHAT, "temperature": 0}), ("/v1/completions", {**TEXT, "temperature": 0})]


@pytest.mark.parametrize("given", COUNTERS, ids=lambda given: next(iter(given)))
def test_counters_of_other_servers(instance: ServerUnderTest, given: dict[str, Any]) -> None:
    """Fields that change a response, with values that broke other servers, are refused by name without a step."""
    for path, body in OPENAI_ROUTES:
        answer = instance.refuses(path, {**body, **given})
        assert answer.status_code == 422 and f"`{next(iter(given))}`" in answer.json()["error"]["message"]


@pytest.mark.parametrize("given", IGNORED, ids=lambda given: next(iter(given)))
def test_fields_of_other_servers(instance: ServerUnderTest, given: dict[str, Any]) -> None:
    """Fields that change no response here are ignored whatever they hold, and the response says so."""
    for path, body in OPENAI_ROUTES:
        answers = [instance.post(path, json.dumps(each)) for each in (body, {**body, **given})]
        assert answers[0].json()["choices"] == answers[1].json()["choices"]
        assert answers[1].headers["x-warning"] == f"ignored fields: {next(iter(given))}"
