"""The load generator reads what a server streams, and believes the server's own count of tokens."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tokenizers import Tokenizer

from bench.random_model import write_tokenizer
from bench.serving import drafts
from tests.serve.process import served
from tgi_core.benchmark.generator import Ask, Outcome, read
from tgi_core.benchmark.load import LoadError, first_tokens, gaps, loopback, offer, openai_count, percentile, tgi_count, tokens
from tgi_core.benchmark.prompts import prompt


@pytest.fixture(scope="module")
def port() -> Generator[int, None, None]:
    """A server without a model."""
    with served("--backend", "reference") as server:
        yield urlsplit(server.url).port or 0


def ask(route: str, **body: object) -> Ask:
    """A request at once."""
    return Ask(0.0, route, json.dumps(body))


def test_streams_are_read_and_counted(port: int) -> None:
    """Each token of /generate_stream is an event with a time, in order, and as many come as were asked for."""
    load = offer(loopback(port), [ask("/generate_stream", inputs="once", parameters={"max_new_tokens": 4, "details": True})] * 3)
    assert tokens(load, tgi_count, None) == sum(len(outcome.events) for outcome in load.outcomes)
    assert all(outcome.events == tuple(sorted(outcome.events)) for outcome in load.outcomes)
    assert len(first_tokens(load.outcomes)) == 3 and all(gap >= 0 for gap in gaps(load.outcomes))


def test_usage_is_counted(port: int) -> None:
    """OpenAI's stream tells the tokens in its last chunk."""
    load = offer(
        loopback(port), [ask("/v1/completions", prompt="once", max_tokens=4, stream=True, stream_options={"include_usage": True})]
    )
    assert 1 <= tokens(load, openai_count, None) <= 4


def test_other_counts_are_refused(port: int) -> None:
    """Fewer tokens than were asked for, an error in the stream, or another status than 200 make no figure."""
    load = offer(loopback(port), [ask("/generate_stream", inputs="once", parameters={"max_new_tokens": 2, "details": True})])
    with pytest.raises(LoadError, match="9 were asked for"):
        tokens(load, tgi_count, 9)
    with pytest.raises(LoadError, match=r"0 events: .*cannot be empty"):
        tokens(offer(loopback(port), [ask("/generate_stream", inputs="", parameters={"max_new_tokens": 2})]), tgi_count, None)
    with pytest.raises(LoadError, match="status 404"):
        tokens(offer(loopback(port), [ask("/nowhere")]), tgi_count, None)


def test_events_across_pieces() -> None:
    """An event counts when it is complete, wherever the bytes were cut; times count from when the request was due."""
    event = b'data: {"text":"a"}\n\n'
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"%x\r\n%s\r\n" % (len(event), event)) * 2 + b"0\r\n\r\n"
    cut = answer.index(b'"a"') + 1
    outcome = read([(11.0, answer[:cut]), (12.0, answer[cut:])], Ask(0.5, "/", ""), start=10.0)
    assert outcome.status == 200 and outcome.events == (1.5, 1.5)


def test_percentiles_of_gaps() -> None:
    """Gaps are within a stream, never between streams."""
    streams = [Outcome("", 200, (1.0, 2.0, 4.0), (), 0.0), Outcome("", 200, (10.0, 13.0), (), 0.0)]
    assert sorted(gaps(streams)) == [1.0, 2.0, 3.0]
    assert percentile([5.0], 99) == 5.0 and percentile([0.0, 1.0], 50) == 0.5


def test_prompts_are_as_long_as_they_say(tmp_path: Path) -> None:
    """A prompt's text is exactly its ids to the random model's tokenizer, and another seed gives another."""
    write_tokenizer(tmp_path, 3000)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 3000
    ids, text = prompt("a", 128)
    assert len(ids) == 128 and tokenizer.encode(text).ids == ids
    assert prompt("b", 128)[0] != ids


def test_drafts_are_compared_answer_by_answer(port: int) -> None:
    """The bench of speculation asks both servers the same, counts the server's tokens, and stops where the answers differ."""
    rows = drafts.measure(port, port, rounds=1, clients=(2,), new=4)
    assert {row["kind"] for row in rows} == {"edit", "again", "list", "free"} and all(row["plain"] > 0 for row in rows)
    assert drafts.report(rows).count("\n") == 2 + len(rows)
    with pytest.raises(RuntimeError, match="/v1/completions: 422"):
        drafts.ask(port, "/v1/completions", [{"prompt": "once", "max_tokens": -4}])
