"""Prefill and decode by batch size: as many requests as the batch has rows, all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tgi_core.benchmark.endpoint import Endpoint
from tgi_core.benchmark.generator import Load
from tgi_core.benchmark.latencies import Answer, answers
from tgi_core.benchmark.load import LoadError, offer, percentile
from tgi_core.benchmark.workload import Span, WordsOf, synthetic

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Batch sizes, and tokens of each prompt and answer. Each size is measured `rounds` times, sizes in turns, after a warm-up."""

    sizes: Sequence[int]
    prompt: int
    new: int
    rounds: int
    seed: str


def measure(endpoint: Endpoint, plan: BatchPlan, words_of: WordsOf) -> Iterator[Row]:
    """One row per batch size and round; those of the warm-up have a round below 0. Raises LoadError."""
    for turn in range(-1, plan.rounds):
        for size in plan.sizes if turn >= 0 else plan.sizes[:2]:
            jobs = synthetic(
                size, Span(plan.prompt, plan.prompt), Span(plan.new, plan.new), f"{plan.seed} {turn} {size}", words_of
            )
            load = offer(endpoint.target, [endpoint.ask(job.prompt) for job in jobs])
            yield {"batch": size, "round": turn, **figures(load, endpoint)}


def figures(load: Load, endpoint: Endpoint) -> dict[str, float]:
    """Throughput in tokens per second, and latencies in milliseconds.

    Prefill lasts until every row has its first token; decode is what follows, until the last token, and 0 if nothing follows. Raises
    LoadError unless every request was answered.
    """
    found, failures = answers(load, endpoint)
    if failures:
        raise LoadError("; ".join(f"{reason} ({count} requests)" for reason, count in failures.items()))
    made, prompted = sum(answer.tokens for answer in found), sum(answer.prompt_tokens or 0 for answer in found)
    first, last = max(answer.ttft for answer in found), max(answer.e2e for answer in found)
    gaps = [gap for answer in found for gap in answer.gaps]
    waits = [answer.ttft for answer in found]
    return {
        "tokens": made,
        "prompt_tokens": prompted,
        "seconds": load.seconds,
        "rate": made / load.seconds,
        "prefill": 1e3 * prompted / first,
        "decode": 1e3 * _made_after(found, first) / (last - first) if last > first else 0.0,
        "first_p50_ms": median(waits),
        "first_p99_ms": percentile(waits, 99),
        "gap_p50_ms": median(gaps) if gaps else 0.0,
        "gap_p99_ms": percentile(gaps, 99) if gaps else 0.0,
        "client_share": load.client_share,
    }


def _made_after(found: Sequence[Answer], when: float) -> float:
    """Tokens that came after a time; an event of several counts as its stream's mean."""
    made = 0.0
    for answer in found:
        now, later = answer.ttft, 0
        for gap in answer.gaps:
            now += gap
            later += now > when
        made += later * answer.tokens / (1 + len(answer.gaps))
    return made
