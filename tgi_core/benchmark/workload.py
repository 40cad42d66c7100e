"""What a load asks for: lengths or a file of requests, and when each request is sent."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from tgi_core.benchmark.endpoint import Endpoint, Prompt
from tgi_core.benchmark.load import LoadError, offer
from tgi_core.benchmark.prompts import prompt
from tgi_core.benchmark.trace import read_trace
from tgi_core.errors import StartupError

WordsOf = Callable[[int], int]
"""Words of a prompt with that many tokens."""

_FEW, _MANY = 16, 256
"""Words of the prompts that tell how many tokens a word has."""


@dataclass(frozen=True, slots=True)
class Span:
    """Lengths in tokens, drawn evenly between both bounds."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Span:
        """`128` or `64-512`. Raises ValueError."""
        low, _, high = text.partition("-")
        span = cls(int(low), int(high or low))
        if not 1 <= span.low <= span.high:
            raise ValueError(f"{text} is no range of lengths")
        return span

    def draw(self, chance: random.Random) -> int:
        """One of the lengths."""
        return chance.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Job:
    """A request of a load and its time in seconds."""

    prompt: Prompt
    at: float = 0.0


def synthetic(count: int, prompts: Span, answers: Span, seed: str, words_of: WordsOf) -> list[Job]:
    """Requests of random words, no two of which begin alike."""
    chance = random.Random(f"{seed} lengths")
    lengths = [(prompts.draw(chance), answers.draw(chance)) for _ in range(count)]
    return [Job(_words(f"{seed} {i}", words_of(length), new)) for i, (length, new) in enumerate(lengths)]


def _words(seed: str, words: int, new: int) -> Prompt:
    return Prompt(prompt(seed, words)[1], new)


def read_dataset(path: Path, count: int | None, answers: Span, seed: str, words_of: WordsOf) -> list[Job]:
    """The first requests of a file, in order: JSON Lines or a JSON array of objects with `prompt`, `messages` or ShareGPT's
    `conversations`, and optionally `output_tokens`; or a trace in CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens,
    whose prompts are random words. Raises StartupError."""
    try:
        if path.suffix == ".csv":
            trace = read_trace(path, count)
            return [Job(_words(f"{seed} {i}", words_of(item.prompt), item.answer), item.at) for i, item in enumerate(trace)]
        chance = random.Random(f"{seed} lengths")
        found = list(islice(_prompts(path, answers, chance), count))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StartupError(f"--dataset {path}: {type(error).__name__}: {error}") from error
    if not found:
        raise StartupError(f"--dataset {path}: holds no request")
    return [Job(item) for item in found]


def _prompts(path: Path, answers: Span, chance: random.Random) -> Iterator[Prompt]:
    text = path.read_text(encoding="utf-8")
    items = json.loads(text) if text.lstrip().startswith("[") else map(json.loads, filter(str.strip, text.splitlines()))
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise ValueError(f"request {number} is no object")
        new = int(item.get("output_tokens") or item.get("max_tokens") or answers.draw(chance))
        yield _prompt(item, new, number)


def _prompt(item: dict[str, Any], new: int, number: int) -> Prompt:
    if isinstance(item.get("prompt"), str):
        return Prompt(item["prompt"], new)
    messages = item.get("messages")
    if isinstance(messages, list) and messages:
        return Prompt("\n".join(str(message.get("content")) for message in messages), new, tuple(messages))
    turns = item.get("conversations")
    if isinstance(turns, list) and turns:
        return Prompt(str(turns[0]["value"]), new)
    raise ValueError(f"request {number} has no prompt, messages or conversations")


def at_rate(jobs: Sequence[Job], per_second: float, seed: str) -> list[Job]:
    """The same requests as a Poisson process."""
    chance, now, sent = random.Random(f"{seed} arrivals"), 0.0, []
    for job in jobs:
        sent.append(replace(job, at=now))
        now += chance.expovariate(per_second)
    return sent


def measure_words(endpoint: Endpoint, seed: str, longest: int = _MANY) -> WordsOf:
    """How many words a prompt of a number of tokens, up to `longest`, has, by the server's own count: a tokenizer may split words, add
    tokens of its own, and a chat has a template. No prompt is longer than those that follow: the server's context may be short. Raises
    StartupError if the server does not answer, or does not tell."""
    probes = _FEW, min(_MANY, max(2 * _FEW, longest))
    asks = [endpoint.ask(_words(f"{seed} probe {count}", count, 1)) for count in probes]
    outcomes = offer(endpoint.target, asks).outcomes
    try:
        found = [endpoint.counts(outcome)[0] for outcome in outcomes]
    except (LoadError, ValueError) as error:
        raise StartupError(f"{endpoint.url}: {outcomes[-1].status}: {outcomes[-1].error or error}") from error
    few, many = found
    if few is None or many is None or many <= few:
        return lambda tokens: tokens
    per_word = (many - few) / (probes[1] - probes[0])
    own = few - per_word * probes[0]
    return lambda tokens: max(1, round((tokens - own) / per_word))
