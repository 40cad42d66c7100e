"""Running the load generator in a child process, and evaluating the outcomes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from statistics import quantiles
from typing import Any

from tgi_core.benchmark.generator import Ask, Load, Outcome, Progress
from tgi_core.benchmark.target import Target
from tgi_core.workers.command import python

PATIENCE_S = 600.0

Count = Callable[[Outcome], int]
"""Reads the number of tokens that a server reports for a request."""


class LoadError(Exception):
    """A server did not answer as requested."""


def loopback(port: int) -> Target:
    """A server on this machine."""
    return Target("127.0.0.1", port)


def offer(
    target: Target,
    asks: Sequence[Ask],
    clients: int = 0,
    patience_s: float = PATIENCE_S,
    show: Callable[[Progress], object] | None = None,
) -> Load:
    """Send requests from a child process and wait for all answers; see `generator.offer`. Raises LoadError if the child fails."""
    plan = {
        "target": asdict(target),
        "asks": [asdict(ask) for ask in asks],
        "clients": clients,
        "patience_s": patience_s,
        "progress": show is not None,
    }
    command = python("tgi_core.benchmark.generator")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            load = _followed(child, json.dumps(plan), show)
        except BaseException:
            child.kill()
            raise
    if load is None:
        raise LoadError(f"the load generator ended with status {child.returncode}")
    return load


def _followed(child: subprocess.Popen[str], plan: str, show: Callable[[Progress], object] | None) -> Load | None:
    if child.stdin is None or child.stdout is None:
        return None
    child.stdin.write(plan)
    child.stdin.close()
    for line in child.stdout:
        told = json.loads(line)
        if "load" in told:
            return _load(told["load"])
        if show is not None:
            show(Progress(**told["progress"]))
    return None


def _load(found: dict[str, Any]) -> Load:
    outcomes = (item | {"events": tuple(item["events"]), "last": tuple(item["last"])} for item in found["outcomes"])
    return Load(tuple(Outcome(**item) for item in outcomes), found["seconds"], found["client_share"])


def tokens(load: Load, count: Count, wanted: int | None) -> int:
    """Total tokens as reported by the server. Raises LoadError unless every request was answered, with `wanted` tokens if given."""
    total = 0
    for outcome in load.outcomes:
        if outcome.status != 200 or not outcome.events:
            raise LoadError(f"status {outcome.status} after {len(outcome.events)} events: {outcome.error}")
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
    return percentiles(values)[percent]


def percentiles(values: Sequence[float]) -> list[float]:
    """Interpolated percentiles 0 to 100."""
    inner = quantiles(values, n=100, method="inclusive") if len(values) > 1 else list(values) * 99
    return [min(values), *inner, max(values)]


def tgi_count(outcome: Outcome) -> int:
    """`generated_tokens` of the last event of /generate_stream."""
    return tgi_counts(outcome)[1]


def openai_count(outcome: Outcome) -> int:
    """`usage.completion_tokens` of a stream whose options include it."""
    return openai_counts(outcome)[1]


def tgi_counts(outcome: Outcome) -> tuple[int | None, int]:
    """Tokens of the prompt, if told, and those generated, from the last event of /generate_stream. Raises LoadError."""
    for event in _events(outcome):
        if details := event.get("details"):
            return details.get("input_length"), int(details["generated_tokens"])
    raise LoadError(f"no details: {outcome.last}")


def openai_counts(outcome: Outcome) -> tuple[int | None, int]:
    """The same, from the usage in a stream whose options include it. Raises LoadError."""
    for event in _events(outcome):
        if usage := event.get("usage"):
            return usage.get("prompt_tokens"), int(usage["completion_tokens"])
    raise LoadError(f"no usage: {outcome.last}")


def _events(outcome: Outcome) -> list[dict[str, dict[str, int]]]:
    """The last events, the latest first."""
    return [json.loads(event) for event in reversed(outcome.last) if event.startswith("{")]
