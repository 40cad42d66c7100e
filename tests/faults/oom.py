"""Steps that run out of memory by chance, in the verb or in the step, under a stream of requests: `python -m tests.faults.oom`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from tests.faults.servers import Servers, ServerUnderTest
from tests.scheduler.device import request
from tgi_core.backend import WarmupPlan
from tgi_core.backend.fault_schedule import parse_schedule
from tgi_core.backend.faults import inject
from tgi_core.grammar.compiler import GrammarCompiler
from tgi_core.model_files import DEMO
from tgi_core.scheduler import GenerationRequest
from tgi_core.tokenizer import Tokenizer

SCHEDULE = "oom:p={p},seed={seed};oom:p={p},seed={seed}1,when=rows;oom:p={p},seed={seed}2,when=late"
PLAN = WarmupPlan(max_rows=32, max_row_tokens=64, max_step_tokens=256, num_blocks=120, block_size=16)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a stream of requests. `lost` says why the shard died, if it did."""

    tokens: dict[int, list[int]]
    failed: dict[int, str]
    injected: int
    steps: int
    lost: str | None


def wanted() -> Iterator[GenerationRequest]:
    """Requests without end: greedy, of many lengths, some of which begin alike."""
    for place in count():
        yield request((1 + place % 7, 20 + place % 190, 5)[: 1 + place % 3] * (1 + place % 5), 2 + place % 11)


def serve(instance: ServerUnderTest, requests: int, p: float, seed: int = 1) -> Outcome:
    """So many requests, eight of them at a time. With p 0 nothing is injected."""
    rules = parse_schedule(SCHEDULE.format(p=p, seed=seed)) if p else ()
    injector = inject(instance.server.session, rules)
    coming = islice(wanted(), requests)
    for item in islice(coming, 8):
        instance.scheduler.add(item)
    ended = 0
    while not instance.scheduler.idle and instance.scheduler.lost is None:
        instance.turn()
        for item in islice(coming, len(instance.ended) - ended):
            instance.scheduler.add(item)
        ended = len(instance.ended)
        instance.turns.clear()
    lost = None if instance.scheduler.lost is None else str(instance.scheduler.lost)
    failed = {key: str(event.error) for key, event in instance.ended.items() if event.error is not None}
    injector.rules.clear()
    return Outcome(instance.tokens, failed, sum(injector.injected.values()), injector.steps, lost)


def main() -> None:
    """The long form, on demand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    tokenizer = Tokenizer.load(DEMO)
    compiler = GrammarCompiler.for_model(DEMO, tokenizer.eos_ids)
    if compiler is None:
        sys.exit("the demo model has no grammars")
    servers, bad = Servers(tokenizer, compiler), 0
    for kind in ("lock step", "one ahead"):
        start = time.monotonic()
        clean = serve(servers.open(kind, PLAN), arguments.requests, 0)
        faulty = serve(servers.open(kind, PLAN), arguments.requests, 0.01, arguments.seed)
        same = sum(faulty.tokens.get(key) == tokens for key, tokens in clean.tokens.items())
        print(
            f"{kind}: {faulty.steps} steps, {faulty.injected} of them out of memory, lost: {faulty.lost}, "
            f"{len(faulty.failed)} failed, {same} of {len(clean.tokens)} identical, {time.monotonic() - start:.0f} s"
        )
        bad += faulty.lost is not None or len(faulty.failed) > arguments.requests // 100
        bad += same + len(faulty.failed) < arguments.requests
    compiler.close()
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
