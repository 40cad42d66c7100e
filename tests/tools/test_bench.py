"""`tgi bench` measures servers of both APIs, and believes their own counts."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.serve.process import free_port, run, served
from tests.tools.openai_server import Body, OpenAiServer, chat, completion, openai_server
from tests.tools.terminal import Terminal
from tgi_core.benchmark.batches import figures
from tgi_core.benchmark.comparison import changes
from tgi_core.benchmark.endpoint import Endpoint
from tgi_core.benchmark.generator import Load, Outcome
from tgi_core.benchmark.latencies import answers, parse_objectives, summary
from tgi_core.benchmark.load import loopback
from tgi_core.benchmark.workload import Span, at_rate, read_dataset, synthetic
from tgi_core.errors import StartupError

SHORT = ("--prompt-tokens", "24", "--output-tokens", "4")


@pytest.fixture(scope="module")
def url() -> Generator[str, None, None]:
    """A server without a model."""
    with served("--backend", "reference") as server:
        yield server.url


@pytest.fixture
def other() -> Generator[OpenAiServer, None, None]:
    """Another project's server, which answers with four tokens."""
    with openai_server(four_tokens) as server:
        yield server


def four_tokens(body: Body) -> Iterator[Body]:
    """A completion or a chat."""
    texts = [" a", " b", " c", " d"]
    return chat(texts) if "messages" in body else completion(texts, len(body["prompt"].split()))


def result(*arguments: str) -> dict[str, Any]:
    """The JSON that a command prints."""
    done = run("bench", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_batches_are_as_asked(url: str) -> None:
    """Each batch size is measured in each round, with prompts of exactly the tokens asked for, and all tokens of the answers."""
    found = result("batch", url, "--batch", "1,3", "--rounds", "2", *SHORT)
    assert [(row["batch"], row["round"]) for row in found["rows"]] == [(1, 0), (3, 0), (1, 1), (3, 1)]
    for row in found["rows"]:
        assert (row["prompt_tokens"], row["tokens"]) == (24 * row["batch"], 4 * row["batch"])
        assert row["prefill"] > 0 and row["rate"] == pytest.approx(row["tokens"] / row["seconds"])


@pytest.mark.parametrize("api", ["tgi", "completions", "chat"])
def test_each_api_is_measured(url: str, api: str) -> None:
    """All routes give the figures, from requests that are sent at random times."""
    found = result("load", url, "--api", api, "--rate", "100", "--requests", "8", *SHORT)
    load = found["load"]
    assert (found["api"], load["requests"], load["answered"], load["failures"]) == (api, 8, 8, {})
    assert all(request["prompt_tokens"] for request in found["requests"])
    assert {"ttft", "e2e"} <= load.keys() and load["ttft"]["p50"] <= load["e2e"]["p50"] <= load["e2e"]["p99"]


def test_another_server(other: OpenAiServer) -> None:
    """A chunk without text is no token: neither the role at the beginning nor the reason at the end has a time."""
    found = result("load", other.url, "--rate", "200", "--requests", "5", "--body", '{"top_k": 3}', "--api-key", "secret")
    assert found["model"] == "a-model" and found["load"]["tokens"] == 20 and found["load"]["itl"]["mean"] >= 0
    assert all(body["top_k"] == 3 and body["ignore_eos"] for body in other.bodies)
    assert {headers["Authorization"] for headers in other.headers} == {"Bearer secret"}
    chats = result("load", other.url, "--api", "chat", "--clients", "1", "--requests", "2", "--no-ignore-eos")
    assert chats["load"]["tokens"] == 8 and "ignore_eos" not in other.bodies[-1]


def test_tokens_without_text_count() -> None:
    """A special token of a completion has no text, but a time."""

    def answer(body: Body) -> Iterator[Body | str]:
        for _ in range(3):
            yield {"choices": [{"text": "", "finish_reason": None}]}
        yield {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}

    with openai_server(answer) as server:
        load = result("load", server.url, "--clients", "1", "--requests", "1")["load"]
    assert load["answered"] == 1 and load["tokens"] == 3 and load["itl"]["mean"] >= 0


def test_an_answer_without_text_is_a_failure() -> None:
    """A server may hold back bytes that are no character: such an answer has no time of a first token, and the reason says so."""

    def answer(body: Body) -> Iterator[Body | str]:
        yield {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}

    with openai_server(answer) as server:
        done = run("bench", "load", server.url, "--clients", "1", "--requests", "1")
    assert done.returncode == 1 and "no request was answered: 200: an answer without text" in done.stderr


def test_a_short_context_suffices() -> None:
    """No prompt has more words than those asked for need: a server whose context is short would refuse it."""

    def answer(body: Body) -> Iterator[Body | str] | int:
        words = len(body["prompt"].split())
        return completion([" a", " b"], words) if words <= 40 else 400

    with openai_server(answer) as server:
        assert result("batch", server.url, "--batch", "1", "--rounds", "1", "--prompt-tokens", "40", "--output-tokens", "2")[
            "rows"
        ]
        load = result("load", server.url, "--clients", "1", "--requests", "2", "--prompt-tokens", "20-40", "--output-tokens", "2")
    assert load["load"]["answered"] == 2


def test_clients_take_turns(other: OpenAiServer) -> None:
    """With --clients there are never more requests at once."""
    found = result("load", other.url, "--clients", "3", "--requests", "12", *SHORT)
    assert found["load"]["answered"] == 12 and other.most_running <= 3


def test_failures_are_counted() -> None:
    """A request that is refused is a failure with the server's reason, and no answer of the goodput."""
    refused = iter([False, False, *[True, False] * 3])

    def answer(body: Body) -> Iterator[Body | str] | int:
        return 429 if next(refused) else completion([" a", " b"])

    with openai_server(answer) as server:
        found = result("load", server.url, "--clients", "1", "--requests", "6", "--slo", "ttft:60000", "--slo", "e2e:60000")
    load = found["load"]
    assert load["answered"] == 3 and load["goodput"]["share"] == 0.5
    assert sum(load["failures"].values()) == 3 and "429: " in min(load["failures"]) and "try again later" in min(load["failures"])


def test_a_batch_that_is_refused_makes_no_figure() -> None:
    """Throughput of fewer requests than the batch size says nothing."""
    asked = iter(range(10))

    def answer(body: Body) -> Iterator[Body | str] | int:
        return completion([" a", " b"]) if next(asked) < 2 else 503

    with openai_server(answer) as server:
        done = run("bench", "batch", server.url, "--batch", "1")
    assert done.returncode == 1 and "503" in done.stderr and "try again later" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("load", "http://127.0.0.1:{port}", "--rate", "1"), "http://127.0.0.1:{port}: no answer: Connection refused"),
        (("load", "{url}"), "--rate and --clients: give one of the two"),
        (("load", "{url}", "--clients", "1", "--duration", "5"), "--duration: needs --rate"),
        (("load", "{url}", "--rate", "1", "--slo", "speed:5"), "--slo speed:5: is not one of ttft:MS, tpot:MS, e2e:MS"),
        (("load", "{url}", "--rate", "1", "--prompt-tokens", "9-3"), "9-3 is no range of lengths"),
        (("load", "{url}", "--rate", "1", "--body", "[]"), "--body []: must be a JSON object"),
        (("load", "{url}", "--rate", "1", "--dataset", "/nowhere.jsonl"), "--dataset /nowhere.jsonl: FileNotFoundError"),
        (("batch", "{url}", "--batch", "1,x"), "--batch 1,x: must be numbers"),
        (("batch", "{url}", "--plot", "picture.png"), "--plot picture.png: must end with .svg or .html"),
        (("batch", "ftp://127.0.0.1"), "ftp://127.0.0.1: not the URL of a server"),
    ],
)
def test_mistakes_are_named(url: str, arguments: tuple[str, ...], reason: str) -> None:
    """The message says which flag or address is wrong."""
    places = {"port": str(free_port()), "url": url}
    done = run("bench", *(argument.format(**places) for argument in arguments))
    assert done.returncode == 1 and reason.format(**places) in done.stderr, done.stderr


def test_results_are_compared(url: str, tmp_path: Path) -> None:
    """Two results are set beside each other, figure by figure; a loss above --max-loss is the exit status; both are drawn."""
    files = [str(tmp_path / name) for name in ("a.json", "b.json", "batch.json")]
    for file in files[:2]:
        run("bench", "load", url, "--rate", "200", "--requests", "6", *SHORT, "--save", file)
    worse = json.loads(Path(files[0]).read_text())
    for request in worse["requests"]:
        request["ttft"] *= 9
    worse["load"]["ttft"]["p50"] *= 9
    Path(files[1]).write_text(json.dumps(worse))
    picture = tmp_path / "both.svg"
    done = run("bench", "compare", *files[:2], "--plot", str(picture))
    assert done.returncode == 0
    assert next(line for line in done.stdout.splitlines() if line.startswith("ttft p50, ms")).endswith("worse")
    ElementTree.parse(picture)  # noqa: S314  our own
    assert "a.json" in picture.read_text() and "b.json" in picture.read_text()
    strict = run("bench", "compare", *files[:2], "--max-loss", "50", "--json")
    assert strict.returncode == 1 and "ttft p50, ms (800.0 %)" in strict.stderr
    told = {change["name"]: change for change in json.loads(strict.stdout)["changes"]}
    assert told["ttft p50, ms"]["ratio"] == pytest.approx(9.0)
    run("bench", "batch", url, "--batch", "1", "--rounds", "1", *SHORT, "--save", files[2])
    other = run("bench", "compare", files[0], files[2])
    assert other.returncode == 1 and "a load result cannot be compared with a batch result" in other.stderr
    none = run("bench", "compare", files[0], str(tmp_path / "missing.json"))
    assert none.returncode == 1 and "missing.json: cannot be read" in none.stderr


def test_rounds_that_overlap_are_noise() -> None:
    """A difference of medians counts only if no round of one is among those of the other."""

    def batch(*rates: float) -> dict[str, Any]:
        names = ("prefill", "decode", "rate", "first_p50_ms", "first_p99_ms", "gap_p50_ms", "gap_p99_ms")
        return {"kind": "batch", "options": {}, "rows": [{"batch": 1, **dict.fromkeys(names, rate)} for rate in rates]}

    first = {change.name: change for change in changes(batch(10, 12, 14), batch(13, 15, 16))}
    assert first["batch 1: decode, tokens/s"].verdict == "within noise"
    second = {change.name: change for change in changes(batch(10, 11, 12), batch(20, 21, 22))}
    assert second["batch 1: decode, tokens/s"].verdict == "better"
    assert second["batch 1: next token p50, ms"].verdict == "worse"


@pytest.mark.parametrize("command", [("load", "--rate", "200", "--requests", "6"), ("batch", "--batch", "1,2", "--rounds", "1")])
def test_a_page_has_chart_and_figures(url: str, tmp_path: Path, command: tuple[str, ...]) -> None:
    """The page is one file: an SVG that is well-formed, and the tables that the terminal shows."""
    page = tmp_path / "result.html"
    done = run("bench", command[0], url, *command[1:], *SHORT, "--plot", str(page))
    text = page.read_text()
    ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])  # noqa: S314  our own
    assert done.stdout.splitlines()[0].split("  ")[0].strip() in text
    assert "<script" not in text and "http-equiv" not in text


def test_a_dashboard_on_a_terminal(url: str) -> None:
    """A terminal shows a panel while it runs, and tables afterwards."""
    with Terminal("bench", "load", url, "--rate", "40", "--requests", "40", *SHORT) as terminal:
        terminal.until("events/s")
        terminal.until("time to first token (ttft)")
        assert terminal.end() == 0
    assert "answered" in terminal.shown and "Traceback" not in terminal.shown


def test_lines_where_there_is_no_terminal(url: str) -> None:
    """Standard error has a line per measurement, standard output the tables in columns."""
    done = run("bench", "batch", url, "--batch", "2", "--rounds", "1", *SHORT)
    assert "warm-up, batch 2: " in done.stderr and "round 1, batch 2: " in done.stderr
    heads, row = done.stdout.splitlines()
    assert heads.startswith("batch  prefill, tokens/s") and row.startswith("2 ")


def outcome(first: float, *gaps: float, at: float = 0.0) -> Outcome:
    """An answer with a first event and further ones."""
    times = [first]
    for gap in gaps:
        times.append(times[-1] + gap)
    usage = json.dumps({"usage": {"prompt_tokens": 5, "completion_tokens": len(times)}})
    return Outcome("", 200, tuple(times), (usage, "[DONE]"), at, times[-1])


def test_figures_of_a_known_load() -> None:
    """Percentiles, time per token and goodput of times that are known."""
    endpoint = Endpoint("http://x", loopback(1), "", "completions", "m")
    failed = replace(outcome(0.1), status=500, error="no")
    load = Load((outcome(0.1, 0.02, 0.04), outcome(0.3, 0.02, 0.02, at=1.0), failed), 2.0, 0.1)
    found, failures = answers(load, endpoint)
    told = summary(found, failures, load, {"ttft": 200.0, "tpot": 35.0})
    assert told["requests"] == 3 and told["answered"] == 2 and told["failures"] == {"500: no": 1}
    assert told["ttft"]["p50"] == pytest.approx(200) and told["ttft"]["max"] == pytest.approx(300)
    assert told["itl"]["mean"] == pytest.approx(25) and told["itl"]["max"] == pytest.approx(40)
    assert [answer.tpot for answer in found] == [pytest.approx(30), pytest.approx(20)]
    assert told["tokens_per_s"] == 3.0 and told["prompt_tokens_per_s"] == 5.0
    assert told["goodput"]["requests_per_s"] == 0.5 and told["goodput"]["share"] == pytest.approx(1 / 3)


def test_figures_of_a_known_batch() -> None:
    """Prefill lasts until the slower row has its first token, and decode from then on; there is none where all tokens come at once."""
    endpoint = Endpoint("http://x", loopback(1), "", "completions", "m")
    told = figures(Load((outcome(0.1, 0.15, 0.1, 0.1), outcome(0.2, 0.1, 0.1, 0.1)), 0.5, 0.1), endpoint)
    assert (told["tokens"], told["prompt_tokens"], told["rate"]) == (8, 10, 16.0)
    assert told["prefill"] == pytest.approx(10 / 0.2) and told["decode"] == pytest.approx(6 / 0.3)
    assert (told["first_p50_ms"], told["gap_p50_ms"]) == (pytest.approx(150), pytest.approx(100))
    assert figures(Load((outcome(0.1, 0.0, 0.0),), 0.1, 0.1), endpoint)["decode"] == 0


def test_arrivals_are_a_poisson_process() -> None:
    """The mean rate is as asked, gaps vary as they do at random, and a seed gives the same times."""
    jobs = synthetic(4000, Span(4, 8), Span(1, 1), "s", lambda tokens: tokens)
    times = [job.at for job in at_rate(jobs, 20.0, "s")]
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert times == sorted(times) and mean == pytest.approx(0.05, rel=0.05)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation == pytest.approx(mean, rel=0.1)
    assert times == [job.at for job in at_rate(jobs, 20.0, "s")] != [job.at for job in at_rate(jobs, 20.0, "t")]
    assert {len(job.prompt.text.split()) for job in jobs} == {4, 5, 6, 7, 8}


def test_datasets(tmp_path: Path) -> None:
    """JSON Lines, ShareGPT's JSON and a trace in CSV give the same kinds of requests; what is none is named."""

    def read(name: str, text: str, count: int | None = None) -> list[Any]:
        (tmp_path / name).write_text(text)
        return read_dataset(tmp_path / name, count, Span(9, 9), "s", lambda tokens: tokens)

    lines = [{"prompt": "one", "output_tokens": 3}, {"messages": [{"role": "user", "content": "two"}]}]
    jobs = read("lines.jsonl", "\n".join(map(json.dumps, lines)))
    assert [(job.prompt.text, job.prompt.new) for job in jobs] == [("one", 3), ("two", 9)]
    assert jobs[1].prompt.messages == ({"role": "user", "content": "two"},)
    shared = [{"conversations": [{"from": "human", "value": "three"}, {"from": "gpt", "value": "…"}]}] * 4
    assert [job.prompt.text for job in read("shared.json", json.dumps(shared), 2)] == ["three"] * 2
    trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,7,2\n2023-11-16 18:17:04.97,5,4\n"
    jobs = read("trace.csv", trace)
    assert [(job.at, len(job.prompt.text.split()), job.prompt.new) for job in jobs] == [(0.0, 7, 2), (1.0, 5, 4)]
    for name, text in (("bad.jsonl", '{"text": 1}'), ("bad.json", "[1]"), ("none.jsonl", ""), ("torn.jsonl", '{"prompt": ')):
        with pytest.raises(StartupError, match=f"--dataset .*{name}: "):
            read(name, text)


def test_objectives() -> None:
    """Objectives are names and milliseconds."""
    assert parse_objectives(["ttft:500,tpot:50", "e2e:5000"]) == {"ttft": 500.0, "tpot": 50.0, "e2e": 5000.0}
    for text in ("ttft", "ttft:x", "ttft:0", "itl:5"):
        with pytest.raises(ValueError):
            parse_objectives([text])
