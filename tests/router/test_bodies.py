"""Bodies that cannot be read, routes that do not exist, and browsers."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest

from tests.router.conftest import Serve
from tests.router.scripted import says
from tests.router.serving import Served, read_until
from tests.waiting import wait_until

JSON = {"content-type": "application/json"}
UNTYPED = "Expected request with `Content-Type: application/json`"
SYNTAX = "Failed to parse the request body as JSON"
TYPES = "Failed to deserialize the JSON body into the target type: "
POSTS = ("/", "/generate", "/generate_stream", "/tokenize", "/chat_tokenize", "/v1/chat/completions", "/v1/completions")


def post(served: Served, content: bytes, content_type: str = "application/json", path: str = "/generate") -> Any:
    """A raw body."""
    return served.client.post(path, content=content, headers={"content-type": content_type})


@pytest.mark.parametrize("path", POSTS)
def test_every_route_reads_bodies_alike(hello: Served, path: str) -> None:
    """415, 400 and 422 have TGI's words on every route: in plain text, under /v1 in OpenAI's error object."""
    for content, content_type, status, text in [
        (b"{}", "text/plain", 415, UNTYPED),
        (b"{", "application/json", 400, SYNTAX),
        (b"{}", "application/json", 422, TYPES + "missing field `"),
        (b"[]", "application/json", 422, TYPES + "invalid type, expected an object"),
    ]:
        answer = post(hello, content, content_type, path)
        assert answer.status_code == status
        if path.startswith("/v1/"):
            assert answer.json()["error"]["message"].startswith(text)
            assert (answer.json()["error"]["type"], answer.json()["error_type"]) == ("invalid_request_error", "invalid_body")
        else:
            assert answer.text.startswith(text)
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.api+json"])
def test_content_types(hello: Served, content_type: str) -> None:
    """Parameters, case and the suffix +json do not matter."""
    assert post(hello, b'{"inputs":"Hi"}', content_type).status_code == 200


@pytest.mark.parametrize(
    "content",
    [
        b"", b'{"inputs":"Hi"} x', b'{"inputs":"Hi","x":NaN}', b'{"inputs":"Hi","x":-Infinity}', b'{"inputs":"\xff"}',
        b'{"inputs":"\\ud800"}', b"\xef\xbb\xbf{}", b"[" * 100_000, b'{"a":' * 100_000,
        b'{"inputs":"Hi","x":1' + b"0" * 5000 + b"}",
    ],
    ids=["empty", "trailing", "nan", "infinity", "utf8", "surrogate", "bom", "depth", "object depth", "digits"],
)  # fmt: skip
def test_not_json(hello: Served, content: bytes) -> None:
    """What is not JSON is 400, never 500."""
    answer = post(hello, content)
    assert answer.status_code == 400
    assert answer.text.startswith(SYNTAX)


@pytest.mark.parametrize(
    "parameters",
    [
        '"temperature":"0.5"', '"temperature":true', '"temperature":1e39', '"temperature":1e999', '"max_new_tokens":-1',
        '"max_new_tokens":4294967296', '"max_new_tokens":1.0', '"max_new_tokens":true', '"max_new_tokens":"5"', '"seed":-1',
        '"seed":18446744073709551616', '"top_k":2147483648', '"stop":"x"', '"stop":null', '"stop":[1]', '"do_sample":null',
        '"do_sample":1', '"details":null', '"watermark":null', '"decoder_input_details":null', '"grammar":"x"', '"adapter_id":5',
    ],
)  # fmt: skip
def test_wrong_types(hello: Served, parameters: str) -> None:
    """Types are as strict as serde's; the text names the field."""
    answer = post(hello, f'{{"inputs":"Hi","parameters":{{{parameters}}}}}'.encode())
    name = parameters.split('"')[1]
    assert answer.status_code == 422
    assert answer.text.startswith(f"{TYPES}parameters.{name}")


def test_many_faults_are_one_fault(hello: Served) -> None:
    """A list of a million wrong items is judged by its first."""
    answer = post(hello, b'{"inputs":"Hi","parameters":{"stop":[' + b"1," * 900_000 + b"1]}}")
    assert (answer.status_code, answer.text) == (422, f"{TYPES}parameters.stop.0: invalid type, expected a string")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"tool_choice": 5}, "tool_choice: invalid type, expected a string or an object"),
        ({"tool_choice": {"type": "function"}}, "tool_choice: missing field `function`"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function: missing field `name`"),
        ({"tool_choice": {"function": {"name": 5}}}, "tool_choice.function.name: invalid type, expected a string"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "x", "tools": []}}},
            "tool_choice.allowed_tools.mode: invalid value, expected 'auto' or 'required'",
        ),
        ({"messages": [{"role": "user"}]}, "messages.0: missing field `content` or `tool_calls`"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content: invalid type, expected a string or a list"),
        (
            {"messages": [{"role": "user", "content": [{"type": "x"}]}]},
            "messages.0.content.0.type: invalid value, expected 'text',",
        ),
        ({"logit_bias": "x"}, "logit_bias: invalid type, expected a list or an object"),
        ({"max_tokens": -1}, "max_tokens: invalid value, expected a number >= 0"),
        ({"max_tokens": 1.5}, "max_tokens: invalid type, expected an integer"),
        ({"temperature": "x"}, "temperature: invalid type, expected a number"),
        ({"stream": "x"}, "stream: invalid type, expected a boolean"),
        ({"stop": 1}, "stop: invalid type, expected a string or a list"),
        ({"stop": [1]}, "stop.0: invalid type, expected a string"),
    ],
)
def test_types_in_words_of_json(hello: Served, more: dict[str, Any], text: str) -> None:
    """What is wrong with a type is said with the path in the body that the client wrote, without names of this program's types."""
    body = {"messages": [{"role": "user", "content": "Hi"}], **more}
    answer = hello.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith(TYPES + text)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        (5, "prompt: invalid type, expected a string or a list"),
        (["a", 1.5], "prompt.1: invalid type, expected a string or a list"),
        ([[1, "a"]], "prompt.0.1: invalid type, expected an integer"),
        ([[-1]], "prompt.0.0: invalid value, expected a number >= 0"),
    ],
)
def test_types_of_prompts(hello: Served, prompt: Any, text: str) -> None:
    """A prompt of several possible types is judged by the one that fits best."""
    answer = hello.client.post("/v1/completions", json={"prompt": prompt})
    assert answer.status_code == 422
    assert answer.json()["error"]["message"] == TYPES + text


def test_compressed_bodies(serve: Serve) -> None:
    """A body may be gzip, in one piece and complete, and counts as long as it is decompressed; other encodings are refused."""
    served, _ = serve(payload_limit=10_000)
    body = b'{"inputs":"Hi"}'
    padded = b'{"inputs":"Hi","x":"' + b"a" * (10_000 - len(body) - 7) + b'"}'
    whole = gzip.compress(body)
    for encoding, content, status in [
        ("gzip", whole, 200),
        ("GZIP", gzip.compress(padded), 200),
        ("identity", body, 200),
        ("gzip", gzip.compress(padded + b" " * 20), 413),
        ("gzip", gzip.compress(b" " * 5_000_000), 413),
        ("gzip", whole[:-1], 400),
        ("gzip", whole + b"x", 400),
        ("gzip", body, 400),
        ("gzip", b"", 400),
        ("deflate", zlib.compress(body), 415),
        ("gzip, gzip", gzip.compress(whole), 415),
        ("br", body, 415),
    ]:
        headers = {**JSON, "content-encoding": encoding}
        assert served.client.post("/generate", content=content, headers=headers).status_code == status, (encoding, len(content))


@pytest.mark.parametrize(
    ("path", "more", "text"),
    [
        ("chat/completions", {"top_logprobs": 99, "logprobs": True}, "`top_logprobs` must be >= 0 and <= 20. Given: 99"),
        ("chat/completions", {"max_tokens": 0}, "`max_tokens` must be strictly positive"),
        ("chat/completions", {"truncate_prompt_tokens": 0}, "`truncate_prompt_tokens` must be strictly positive"),
        (
            "chat/completions",
            {"truncate_prompt_tokens": -2},
            "`truncate_prompt_tokens` must be -1, for as many as fit, or a number of tokens",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "a " * 90}]},
            "`messages` tokens + `max_tokens` must be <= 64.",
        ),
        ("completions", {"prompt": "a " * 90}, "`prompt` tokens + `max_tokens` must be <= 64."),
        ("completions", {"prompt": ""}, "`prompt` cannot be empty"),
        ("completions", {"logprobs": 99}, "`logprobs` must be >= 0 and <= 20. Given: 99"),
    ],
)
def test_errors_in_the_callers_names(hello: Served, path: str, more: dict[str, Any], text: str) -> None:
    """Under /v1 an error names the fields of the body that was sent; TGI's names stay with TGI's routes."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", **more}
    answer = hello.client.post(f"/v1/{path}", json=body)
    assert answer.json()["error"]["message"].startswith(f"Input validation error: {text}")
    native = hello.client.post("/generate", json={"inputs": ""}).json()
    assert native["error"] == "Input validation error: `inputs` cannot be empty"


def test_logs_name_the_check(hello: Served, caplog: pytest.LogCaptureFixture) -> None:
    """The line of a refused request names the parameter whose check failed, and nothing that the client wrote."""
    wanted = {"temperature": {"temperature": -1}, "grammar": {"grammar": {"type": "regex", "value": "(`seed` secret"}}}
    for name, parameters in wanted.items():
        body = {"inputs": "Hi", "parameters": parameters}
        assert hello.client.post("/generate", json=body, headers={"x-request-id": f"logged-{name}"}).status_code == 422

    def told() -> dict[str, str]:
        """Lines are written after the answer: some may belong to another test, and the last may still be missing."""
        logged = [record for record in caplog.records if record.name == "tgi_router.request_log"]
        return {record.__dict__["span"]["request_id"]: record.getMessage() for record in logged}

    wait_until(lambda: {f"logged-{name}" for name in wanted} <= told().keys())
    for name in wanted:
        assert told()[f"logged-{name}"] == f"Failed: validation: {name}"


def test_null_and_unknown_fields(hello: Served) -> None:
    """Optional fields accept null, unknown ones are ignored; `parameters` and `stream` are not optional."""
    names = ("best_of", "temperature", "repetition_penalty", "frequency_penalty", "top_k", "top_p", "typical_p", "min_p", "max_new_tokens",
             "return_full_text", "truncate", "seed", "top_n_tokens", "grammar", "adapter_id", "no_such_field")  # fmt: skip
    body = {"inputs": "Hi", "parameters": dict.fromkeys(names), "no_such_field": {}}
    assert hello.client.post("/generate", json=body).status_code == 200
    assert hello.client.post("/generate", json={"inputs": "Hi", "parameters": None}).status_code == 422
    assert hello.client.post("/", json={"inputs": "Hi", "stream": None}).status_code == 422


def test_messages_are_checked(hello: Served) -> None:
    """A message has a content of known parts, or tool calls."""
    for message in (
        {"role": "user"},
        {"role": "user", "content": None},
        {"content": "Hi"},
        {"role": "user", "content": [{"type": "x"}]},
    ):
        assert hello.client.post("/v1/chat/completions", json={"messages": [message]}).status_code == 422


def test_body_limit(serve: Serve) -> None:
    """A body over the limit is 413, declared or chunked, before it is parsed."""
    served, _ = serve(payload_limit=100)
    text = "Failed to buffer the request body"
    declared = post(served, b'{"inputs":"' + b"x" * 200)
    assert (declared.status_code, declared.text[: len(text)]) == (413, text)
    chunked = served.client.post("/generate", content=iter([b"x" * 60, b"x" * 60]), headers=JSON)
    assert (chunked.status_code, chunked.text[: len(text)]) == (413, text)
    assert post(served, b'{"inputs":"Hi"}').status_code == 200


def test_client_leaves_inside_its_body(hello: Served) -> None:
    """A body that never comes to its end harms nobody."""
    with hello.connect() as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{")
    assert post(hello, b'{"inputs":"Hi"}').status_code == 200


def test_unknown_paths_and_methods(hello: Served) -> None:
    """404 names the routes that are served and 405 the methods, in the form of the route's errors; no path is redirected."""
    for answer in (hello.client.get("/nope"), hello.client.post("/generate/")):
        assert (answer.status_code, answer.json()["error_type"]) == (404, "not_found")
        assert "/generate, " in answer.json()["error"] and "/v1/models/{id}" in answer.json()["error"]
    told = hello.client.post("/v1/nope").json()["error"]
    assert (told["type"], told["code"]) == ("invalid_request_error", "not_found") and "/v1/chat/completions" in told["message"]
    for method, path, allowed in (("GET", "/generate", "POST"), ("PUT", "/", "GET, HEAD, POST"), ("POST", "/info", "GET, HEAD")):
        answer = hello.client.request(method, path)
        assert answer.status_code == 405 and answer.headers["allow"] == allowed
        assert answer.json() == {"error": f"this path is served for {allowed}", "error_type": "method_not_allowed"}
    assert hello.client.delete("/v1/models").json()["error"]["code"] == "method_not_allowed"


def test_unknown_paths_and_methods_strictly(serve: Serve) -> None:
    """TGI's 404 and 405 have no body."""
    served, _ = serve(strict_tgi=True)
    answers = [served.client.get("/nope"), served.client.put("/"), served.client.delete("/v1/models")]
    assert [(answer.status_code, answer.content) for answer in answers] == [(404, b""), (405, b""), (405, b"")]


def test_cors(hello: Served) -> None:
    """Browsers of any origin may GET and POST with a key and what OpenAI's client adds, but without cookies, and read all headers."""
    asks = {"origin": "http://a.example", "access-control-request-method": "POST"}
    plain = hello.client.options("/generate", headers={**asks, "access-control-request-headers": "content-type"})
    assert plain.status_code == 200
    assert plain.headers["access-control-allow-origin"] == "*"
    assert plain.headers["access-control-allow-methods"] == "GET, POST"
    wanted = "authorization,content-type,x-stainless-arch,x-stainless-retry-count,x-request-id"
    granted = hello.client.options("/v1/chat/completions", headers={**asks, "access-control-request-headers": wanted})
    assert granted.status_code == 200 and granted.headers["access-control-allow-headers"] == wanted
    assert "access-control-allow-credentials" not in granted.headers
    answer = hello.client.get("/info", headers={"origin": "http://a.example"})
    assert answer.headers["access-control-allow-origin"] == answer.headers["access-control-expose-headers"] == "*"


def test_options_without_a_preflight(hello: Served) -> None:
    """OPTIONS alone is answered with the methods of the path, and with the origin's headers where there is one."""
    paths = {
        "/generate": "OPTIONS, POST",
        "/v1/models": "GET, HEAD, OPTIONS",
        "/": "GET, HEAD, OPTIONS, POST",
        "/nowhere": "OPTIONS",
    }
    for path, methods in paths.items():
        answer = hello.client.options(path, headers={"origin": "http://a.example"})
        assert (answer.status_code, answer.content, answer.headers["allow"]) == (200, b"", methods)
        assert answer.headers["access-control-allow-origin"] == "*"


def test_cors_origins(serve: Serve) -> None:
    """--cors-allow-origin grants only the origins it lists."""
    served, _ = serve(cors_allow_origin=("http://a.example",))
    granted = {
        origin: served.client.get("/info", headers={"origin": origin}).headers
        for origin in ("http://a.example", "http://b.example")
    }
    assert granted["http://a.example"]["access-control-allow-origin"] == "http://a.example"
    assert "access-control-allow-origin" not in granted["http://b.example"]


def test_text_cannot_break_an_event(serve: Serve) -> None:
    """Line breaks in generated text stay inside their event."""
    served, _ = serve(lambda request: says("a\r\n\ndata: x\r\r\n"))
    lines = served.client.post("/generate_stream", json={"inputs": "Hi"}).content.split(b"\n")
    assert all(line.startswith(b"data: {") or line == b"" for line in lines)
    assert len(lines) == 5


def test_pipelined_requests(hello: Served) -> None:
    """Two requests on one connection are answered in turn."""
    with hello.send("/generate", '{"inputs":"Hi"}') as connection:
        assert b"Hello world" in read_until(connection, b'world"}')
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200 OK" in read_until(connection, b"\r\n\r\n")
