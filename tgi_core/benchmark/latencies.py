"""Latencies of a load, in milliseconds: percentiles, throughput, and goodput under objectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from tgi_core.benchmark.endpoint import Endpoint
from tgi_core.benchmark.generator import Load, Outcome
from tgi_core.benchmark.load import LoadError, percentiles

PERCENTILES = (50, 90, 95, 99)
METRICS = {
    "ttft": "time to first token",
    "itl": "inter-token latency",
    "tpot": "time per output token",
    "e2e": "end-to-end latency",
}
"""`itl` is the time between two events of a stream; `tpot` is a request's time after its first token, by each further one."""

OBJECTIVES = ("ttft", "tpot", "e2e")
"""Metrics that a request has one value of."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request that was answered in full: times in milliseconds since it was due, and tokens by the server's own count."""

    at_s: float
    prompt_tokens: int | None
    tokens: int
    ttft: float
    tpot: float | None
    e2e: float
    gaps: tuple[float, ...]

    def meets(self, objectives: Mapping[str, float]) -> bool:
        """Whether no latency is above its objective, in milliseconds."""
        return all((getattr(self, name) or 0.0) <= limit for name, limit in objectives.items())

    def row(self) -> dict[str, Any]:
        """For the result file, without the gaps."""
        shown = {name: getattr(self, name) for name in ("at_s", "prompt_tokens", "tokens", "ttft", "tpot", "e2e")}
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in shown.items()}


def answers(load: Load, endpoint: Endpoint) -> tuple[list[Answer], Counter[str]]:
    """The requests that were answered, and the reasons why others were not."""
    found, failures = list[Answer](), Counter[str]()
    start = min((outcome.sent_at for outcome in load.outcomes), default=0.0)
    for outcome in load.outcomes:
        try:
            if outcome.status != 200 or not outcome.events or outcome.error:
                raise LoadError(f"{outcome.status or 'no answer'}: {outcome.error}")
            found.append(_answer(outcome, endpoint, start))
        except (LoadError, ValueError) as error:
            failures[str(error)[:200]] += 1
    return found, failures


def _answer(outcome: Outcome, endpoint: Endpoint, start: float) -> Answer:
    prompt_tokens, tokens = endpoint.counts(outcome)
    events = [1e3 * event for event in outcome.events]
    tpot = (events[-1] - events[0]) / (tokens - 1) if tokens > 1 else None
    gaps = tuple(after - before for before, after in pairwise(events))
    return Answer(outcome.sent_at - start, prompt_tokens, tokens, events[0], tpot, events[-1], gaps)


def summary(found: Sequence[Answer], failures: Mapping[str, int], load: Load, objectives: Mapping[str, float]) -> dict[str, Any]:
    """The figures of a load."""
    seconds = load.seconds
    values = {
        "ttft": [answer.ttft for answer in found],
        "itl": [gap for answer in found for gap in answer.gaps],
        "tpot": [answer.tpot for answer in found if answer.tpot is not None],
        "e2e": [answer.e2e for answer in found],
    }
    told: dict[str, Any] = {
        "requests": len(load.outcomes),
        "answered": len(found),
        "failures": dict(failures),
        "seconds": seconds,
        "requests_per_s": len(found) / seconds,
        "prompt_tokens_per_s": sum(answer.prompt_tokens or 0 for answer in found) / seconds,
        "tokens_per_s": sum(answer.tokens for answer in found) / seconds,
        "prompt_tokens": sum(answer.prompt_tokens or 0 for answer in found),
        "tokens": sum(answer.tokens for answer in found),
        "client_share": load.client_share,
        **{name: distribution(each) for name, each in values.items() if each},
    }
    if objectives:
        met = sum(answer.meets(objectives) for answer in found)
        told["goodput"] = {
            "objectives_ms": dict(objectives),
            "requests_per_s": met / seconds,
            "share": met / max(1, len(load.outcomes)),
        }
    return told


def distribution(values: Sequence[float]) -> dict[str, Any]:
    """Mean, percentiles, extremes, and the curve of all percentiles from 0 to 100."""
    curve = percentiles(values)
    told: dict[str, Any] = {"mean": fmean(values), "min": curve[0], "max": curve[-1]}
    return told | {f"p{percent}": curve[percent] for percent in PERCENTILES} | {"curve": curve}


def parse_objectives(texts: Iterable[str]) -> dict[str, float]:
    """`ttft:500` or `ttft:500,tpot:50`, in milliseconds. Raises ValueError."""
    found: dict[str, float] = {}
    for part in (part for text in texts for part in text.split(",")):
        name, _, limit = part.strip().partition(":")
        if name not in OBJECTIVES:
            raise ValueError(f"{part}: is not one of {', '.join(f'{each}:MS' for each in OBJECTIVES)}")
        found[name] = float(limit)
        if not found[name] > 0:
            raise ValueError(f"{part}: must be above 0")
    return found
