"""Running the load generator in a child process, and evaluating the outcomes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import quantiles

from bench.serving.stream import Ask, Load, Outcome

ROOT = Path(__file__).resolve().parents[2]

Count = Callable[[Outcome], int]
"""Reads the number of tokens that a server reports for a request."""


class LoadError(Exception):
    """A server did not answer as requested."""


def offer(port: int, asks: Sequence[Ask]) -> Load:
    """Send requests from a child process and wait for all answers. Raises CalledProcessError."""
    plan = {"host": "127.0.0.1", "port": port, "asks": [asdict(ask) for ask in asks]}
    command = [sys.executable, "-m", "bench.serving.stream"]
    done = subprocess.run(command, input=json.dumps(plan), stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    answer = json.loads(done.stdout)
    outcomes = tuple(
        Outcome(item["group"], item["status"], tuple(item["events"]), tuple(item["last"]), item["sent_at"])
        for item in answer["outcomes"]
    )
    return Load(outcomes, answer["seconds"], answer["client_share"])


def tokens(load: Load, count: Count, wanted: int | None) -> int:
    """Total tokens as reported by the server. Raises LoadError unless every request was answered, with `wanted` tokens if given."""
    total = 0
    for outcome in load.outcomes:
        if outcome.status != 200 or not outcome.events:
            raise LoadError(f"status {outcome.status} after {len(outcome.events)} events: {outcome.last}")
        made = count(outcome)
        if wanted is not None and made != wanted:
            raise LoadError(f"{made} tokens came back; {wanted} were asked for: {outcome.last}")
        total += made
    return total


def first_tokens(outcomes: Sequence[Outcome]) -> list[float]:
    """Time to first event of each request, in seconds."""
    return [outcome.events[0] for outcome in outcomes]


def gaps(outcomes: Sequence[Outcome]) -> list[float]:
    """Seconds between events of the same stream."""
    return [after - before for outcome in outcomes for before, after in pairwise(outcome.events)]


def percentile(values: Sequence[float], percent: int) -> float:
    """Interpolated percentile."""
    return values[0] if len(values) == 1 else quantiles(values, n=100, method="inclusive")[percent - 1]


def tgi_count(outcome: Outcome) -> int:
    """`generated_tokens` of the last event of /generate_stream."""
    for event in reversed(outcome.last):
        details = json.loads(event).get("details")
        if details:
            return int(details["generated_tokens"])
    raise LoadError(f"no details: {outcome.last}")


def openai_count(outcome: Outcome) -> int:
    """`usage.completion_tokens` of a stream whose options include it."""
    for event in reversed(outcome.last):
        usage = None if event == "[DONE]" else json.loads(event).get("usage")
        if usage:
            return int(usage["completion_tokens"])
    raise LoadError(f"no usage: {outcome.last}")
