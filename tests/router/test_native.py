"""POST /, /generate and /generate_stream."""

from __future__ import annotations

import json

from tests.router.conftest import Serve
from tests.router.scripted import detailed, says
from tests.router.serving import Served
from tgi_core.scheduler.types import Limits
from tgi_core.wire.types import FinishReason

DETAILS = {"inputs": "Hi", "parameters": {"details": True, "do_sample": True, "seed": 7}}


def test_generate_answers_one_object(hello: Served) -> None:
    """/generate answers {"generated_text"} and nothing else unless asked."""
    answer = hello.client.post("/generate", json={"inputs": "Hi"})
    assert (answer.status_code, answer.text) == (200, '{"generated_text":"Hello world"}')
    assert answer.headers["content-type"] == "application/json"


def test_compat_answers_list_with_prompt(hello: Served) -> None:
    """POST / wraps the answer into a list of one and puts the prompt before the text unless told not to."""
    assert hello.client.post("/", json={"inputs": "Hi "}).json() == [{"generated_text": "Hi Hello world"}]
    told = {"inputs": "Hi ", "parameters": {"return_full_text": False}}
    assert hello.client.post("/", json=told).json() == [{"generated_text": "Hello world"}]


def test_generate_ignores_stream(hello: Served) -> None:
    """`stream` is an unknown field of /generate."""
    assert hello.client.post("/generate", json={"inputs": "Hi", "stream": True}).json() == {"generated_text": "Hello world"}


def test_details_have_tgi_key_order(serve: Serve) -> None:
    """Details, tokens, top tokens and prefill are printed in TGI's order; NaN and infinity are null; floats are 32-bit."""
    served, _ = serve(lambda request: detailed(), enable_prefill_logprobs=True)
    parameters = {"decoder_input_details": True, "top_n_tokens": 2, "do_sample": True, "seed": 7}
    answer = served.client.post("/generate", json={"inputs": "Hi", "parameters": parameters})
    assert answer.text == (
        '{"generated_text":"a\\n\\"éb","details":{"finish_reason":"length","generated_tokens":2,"seed":7,'
        '"prefill":[{"id":5,"text":"Hi","logprob":null},{"id":6,"text":" you","logprob":-1.5351562}],'
        '"tokens":[{"id":10,"text":"a\\n\\"é","logprob":-0.1,"special":false},{"id":11,"text":"b","logprob":null,"special":false}],'
        '"top_tokens":[[{"id":10,"text":"a","logprob":-0.1,"special":false},{"id":11,"text":"b","logprob":null,"special":false}],[]]}}'
    )


def test_seed_is_null_when_greedy(hello: Served) -> None:
    """The details of a greedy answer have no seed, those of a sampled one have the one that was drawn."""
    greedy = hello.client.post("/generate", json={"inputs": "Hi", "parameters": {"details": True}}).json()["details"]
    sampled = {"inputs": "Hi", "parameters": {"details": True, "do_sample": True}}
    assert greedy["seed"] is None
    assert 0 <= hello.client.post("/generate", json=sampled).json()["details"]["seed"] < 2**64


def test_do_sample_flips_with_parameters(serve: Serve) -> None:
    """Without `parameters` a request samples; with an empty object it does not; a temperature other than 1 switches it on."""
    served, generator = serve()
    bodies: list[dict[str, object]] = [
        {},
        {"parameters": {}},
        {"parameters": {"temperature": 0.5}},
        {"parameters": {"temperature": 1.0}},
        {"parameters": {"min_p": 0.1}},
        {"parameters": {"min_p": 0.0}},
    ]
    for body in bodies:
        served.client.post("/generate", json={"inputs": "Hi", **body})
    assert [generator.submitted.get_nowait().sampling.do_sample for _ in bodies] == [True, False, True, False, True, False]


def test_compute_headers(hello: Served) -> None:
    """A whole answer tells what it cost: type, characters, milliseconds by phase, tokens."""
    headers = hello.client.post("/generate", json={"inputs": "Hié"}).headers
    assert headers["x-compute-type"] == "1-none"
    assert headers["x-compute-characters"] == "3"
    assert headers["x-generated-tokens"] == "3"
    assert int(headers["x-prompt-tokens"]) > 0
    assert float(headers["x-compute-time"]) >= 0
    for name in ("total-time", "validation-time", "queue-time", "inference-time", "time-per-token"):
        assert headers[f"x-{name}"].isdecimal()


def test_compute_type_is_a_setting(serve: Serve) -> None:
    """--compute-type replaces the default."""
    served, _ = serve(compute_type="2-fancy-chip")
    assert served.client.post("/generate", json={"inputs": "Hi"}).headers["x-compute-type"] == "2-fancy-chip"


def test_stream_bytes(hello: Served) -> None:
    """Each token is one `data:` line and an empty one; the last carries text and details; there is no [DONE]."""
    answer = hello.client.post("/generate_stream", json=DETAILS)
    length = answer.text.partition('"input_length":')[2].partition("}")[0]
    middle = '"logprob":-0.5,"special":false},"generated_text":null,"details":null}'
    assert answer.content.decode() == (
        f'data: {{"index":1,"token":{{"id":10,"text":"Hello",{middle}\n\n'
        f'data: {{"index":2,"token":{{"id":11,"text":" world",{middle}\n\n'
        'data: {"index":3,"token":{"id":0,"text":"<|endoftext|>","logprob":-0.5,"special":true},"generated_text":"Hello world",'
        f'"details":{{"finish_reason":"eos_token","generated_tokens":3,"seed":7,"input_length":{length}}}}}\n\n'
    )


def test_stream_headers(hello: Served) -> None:
    """Streams are not cached, not buffered, and tell the characters of the prompt."""
    headers = hello.client.post("/generate_stream", json={"inputs": "Hié"}).headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-compute-characters"] == "3"
    assert "x-total-time" not in headers


def test_compat_streams_on_demand(hello: Served) -> None:
    """POST / with `stream` streams; the prompt is in the full text only."""
    answer = hello.client.post("/", json={"inputs": "Hi ", "stream": True})
    events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
    assert [each["token"]["text"] for each in events] == ["Hello", " world", "<|endoftext|>"]
    assert [each["generated_text"] for each in events] == [None, None, "Hi Hello world"]
    assert events[-1]["details"] is None


def test_stream_top_tokens(serve: Serve) -> None:
    """Top tokens come between the token and the text, and only where there are any."""
    served, _ = serve(lambda request: detailed())
    first, last = served.client.post("/generate_stream", json={"inputs": "Hi", "parameters": {"top_n_tokens": 2}}).text.split(
        "\n\n"
    )[:2]
    assert list(json.loads(first[6:])) == ["index", "token", "top_tokens", "generated_text", "details"]
    assert list(json.loads(last[6:])) == ["index", "token", "generated_text", "details"]


def test_best_of_returns_the_likeliest(serve: Serve) -> None:
    """best_of runs samples with different seeds, answers the best mean logprob, and shows the others in the details."""
    logprobs = iter((-0.9, -0.1))
    served, generator = serve(lambda request: says("ab", logprob=next(logprobs), reason=FinishReason.LENGTH))
    parameters = {"best_of": 2, "do_sample": True, "details": True}
    answer = served.client.post("/generate", json={"inputs": "Hi", "parameters": parameters}).json()
    seeds = [generator.submitted.get_nowait().sampling.seed for _ in range(2)]
    assert len(set(seeds)) == 2
    assert answer["details"]["seed"] == seeds[1]
    assert list(answer["details"]) == ["finish_reason", "generated_tokens", "seed", "prefill", "tokens", "best_of_sequences"]
    [other] = answer["details"]["best_of_sequences"]
    assert list(other) == ["generated_text", "finish_reason", "generated_tokens", "seed", "prefill", "tokens"]
    assert other["seed"] == seeds[0]


def test_truncate_keeps_the_last_tokens(serve: Serve) -> None:
    """`truncate` drops tokens from the front."""
    served, generator = serve()
    for parameters in ({}, {"truncate": 2}):
        served.client.post("/generate", json={"inputs": "one two three four five", "parameters": parameters})
    whole, cut = (generator.submitted.get_nowait().input_ids for _ in range(2))
    assert cut == whole[-2:]


def test_parameters_reach_the_generator(serve: Serve) -> None:
    """Every native parameter that there is arrives in the request."""
    served, generator = serve(enable_prefill_logprobs=True)
    parameters = {
        "temperature": 0.5, "top_k": 3, "top_p": 0.25, "typical_p": 0.75, "repetition_penalty": 1.5, "frequency_penalty": 0.5,
        "min_p": 0.125,
        "seed": 2**64 - 1, "max_new_tokens": 5, "stop": ["x", "y"], "top_n_tokens": 2, "decoder_input_details": True,
    }  # fmt: skip
    served.client.post("/generate", json={"inputs": "Hi", "parameters": parameters})
    request = generator.submitted.get_nowait()
    drawn = request.sampling
    assert (drawn.do_sample, drawn.temperature, drawn.top_k, drawn.top_p, drawn.typical_p) == (True, 0.5, 3, 0.25, 0.75)
    assert (drawn.repetition_penalty, drawn.frequency_penalty, drawn.seed) == (1.5, 0.5, 2**64 - 1)
    assert drawn.min_p == 0.125
    assert (request.stopping.max_new_tokens, request.stopping.stop) == (5, ("x", "y"))
    assert (request.want.logprobs, request.want.top_n, request.want.prompt_logprobs) == (True, 2, True)


def test_max_new_tokens_fills_the_room(serve: Serve) -> None:
    """Without max_new_tokens, and with more than fits behind TGI's run of 1024, the answer may fill what is left."""
    served, generator = serve(scripted={"limits": Limits(1500, 1600)})
    for parameters in ({}, {"max_new_tokens": 10_000}):
        served.client.post("/generate", json={"inputs": "Hi", "parameters": parameters})
    for _ in range(2):
        request = generator.submitted.get_nowait()
        assert request.stopping.max_new_tokens == 1600 - len(request.input_ids)


def test_prefill_is_empty_unless_enabled(serve: Serve) -> None:
    """decoder_input_details implies details, but shows a prompt only where the operator enabled it."""
    served, generator = serve()
    answer = served.client.post("/generate", json={"inputs": "Hi", "parameters": {"decoder_input_details": True}}).json()
    assert answer["details"]["prefill"] == []
    assert not generator.submitted.get_nowait().want.prompt_logprobs
