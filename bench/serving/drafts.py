"""Gain and cost of speculation over HTTP: `python -m bench.serving.drafts [--speculate 8] [--rounds 5] [--json OUT]`.

Two servers with the bundled model, one of which drafts, answer the same requests in turns, so that noise affects both; their answers
must be equal. `edit` are chats that predict their answer but for one word, as editors send them; `again` asks what was asked before;
`list` continues a text that repeats itself; `free` samples at a temperature at which nothing repeats, so that drafts fail: speculation
should cost nothing there.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.report.tables import table
from bench.serving.server import Server, tgi_command

CLIENTS = (1, 8)
NEW = 96
READY_S = 120.0
TOPICS = ("a fox", "a ship", "a king", "a river", "a robot", "a garden", "a clock", "a bear")
FACTS = "".join(
    f"The capital of {country} is {city}.\n" for country, city in (("France", "Paris"), ("Spain", "Madrid"), ("Italy", "Rome"))
)

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answers:
    """Texts, their number of tokens, and the seconds that all took together."""

    texts: tuple[str, ...]
    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def ask(port: int, route: str, bodies: Sequence[Body]) -> Answers:
    """Send all at once, each from a client of its own. Raises RuntimeError for an answer that is an error."""

    def one(body: Body) -> Body:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("POST", route, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer: Body = json.loads(response.read())
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"{route}: {response.status} {answer}")
        return answer

    start = time.perf_counter()
    with ThreadPoolExecutor(len(bodies)) as clients:
        answers = list(clients.map(one, bodies))
    seconds = time.perf_counter() - start
    texts = tuple(
        str(answer["choices"][0].get("text", answer["choices"][0].get("message", {}).get("content"))) for answer in answers
    )
    return Answers(texts, sum(answer["usage"]["completion_tokens"] for answer in answers), seconds)


def chats(turn: int, clients: int, new: int) -> list[Body]:
    """Greedy chats, different in each turn."""
    texts = [
        f"Tell me a story about {TOPICS[(turn + client) % len(TOPICS)]}, number {turn * clients + client}."
        for client in range(clients)
    ]
    return [{"messages": [{"role": "user", "content": text}], "max_tokens": new, "temperature": 0} for text in texts]


def edited(bodies: Sequence[Body], texts: Sequence[str]) -> list[Body]:
    """The same chats with what they should answer as their prediction, but for a word in the middle."""

    def but_one(text: str) -> str:
        words = text.split(" ")
        words[len(words) // 2] = "something"
        return " ".join(words)

    return [
        body | {"prediction": {"type": "content", "content": but_one(text)}} for body, text in zip(bodies, texts, strict=True)
    ]


def lists(turn: int, clients: int, new: int) -> list[Body]:
    """Greedy completions of a text that repeats itself."""
    prompts = [f"Number {turn * clients + client}.\n{FACTS * 4}The capital" for client in range(clients)]
    return [{"prompt": prompt, "max_tokens": new, "min_tokens": new, "temperature": 0} for prompt in prompts]


def free(turn: int, clients: int, new: int) -> list[Body]:
    """Completions sampled at a temperature at which nothing repeats."""
    fields = {"max_tokens": new, "min_tokens": new, "temperature": 2.0}
    return [{"prompt": "Once upon a time", "seed": turn * clients + client, **fields} for client in range(clients)]


def measure(plain: int, drafting: int, rounds: int, clients: Sequence[int] = CLIENTS, new: int = NEW) -> list[dict[str, Any]]:
    """Rates by kind and number of clients, of the server on port `plain` and the one that drafts. Raises RuntimeError if their answers
    differ."""
    rows: list[dict[str, Any]] = []
    for count in clients:
        for turn in range(-1, rounds):  # the first one is a warm-up
            chatted = chats(turn + 1, count, new)
            first = ask(plain, "/v1/chat/completions", chatted)
            kinds = {
                "edit": ("/v1/chat/completions", edited(chatted, first.texts)),
                "again": ("/v1/chat/completions", chatted),
                "list": ("/v1/completions", lists(turn + 1, count, new)),
                "free": ("/v1/completions", free(turn + 1, count, new)),
            }
            for kind, (route, bodies) in kinds.items():
                one, other = ask(plain, route, bodies), ask(drafting, route, bodies)
                if one.texts != other.texts:
                    raise RuntimeError(f"{kind}: drafts changed an answer")
                row = {"kind": kind, "clients": count, "round": turn, "plain": one.rate, "drafting": other.rate}
                rows += [row] if turn >= 0 else []
    return rows


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Medians by kind and number of clients."""

    def lines() -> Any:
        for kind, clients in dict.fromkeys((row["kind"], row["clients"]) for row in rows):
            here = [row for row in rows if row["kind"] == kind and row["clients"] == clients]
            gains = sorted(row["drafting"] / row["plain"] for row in here)
            rates = (f"{median(row[name] for row in here):,.0f}" for name in ("plain", "drafting"))
            yield [kind, clients, *rates, f"{median(gains):.2f} ({gains[0]:.2f}–{gains[-1]:.2f})"]

    return table(["requests", "clients", "tokens/s", "with drafts", "gain"], lines())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="bench.serving.drafts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--speculate", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder)
        drafts = ("--speculate", str(options.speculate), "--speculator", "suffix")
        with (
            Server(tgi_command(None, "cpu"), log / "plain.log") as plain,
            Server(tgi_command(None, "cpu", *drafts), log / "drafts.log") as drafting,
        ):
            plain.wait_ready(READY_S)
            drafting.wait_ready(READY_S)
            rows = measure(plain.port, drafting.port, options.rounds)
    print(report(rows))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
