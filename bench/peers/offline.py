"""Comparison of engines without a server. Engines take turns, so that other load on the machine affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.neighbour import neighbour
from bench.peers.child import EngineError, EngineProcess, check
from bench.peers.engines.protocol import Plan
from bench.peers.venvs import Peer
from tgi_core.benchmark.prompts import prompt

PROMPT, NEW = 128, 64
SETTLE_S = 0.3
"""Pause between two engines, until the previous engine's spinning threads are asleep."""
SLOW_S = 60.0
"""An engine that takes longer for a batch is measured only once at that size, to keep the whole run within an hour."""

Row = dict[str, Any]
Save = Callable[[dict[str, Any]], None]


def offline(
    model: Path,
    peers: Mapping[str, Peer],
    batches: Sequence[int],
    rounds: int,
    save: Save,
    busy: bool = False,
    new: int = NEW,
    weights: str = "",
) -> dict[str, Any]:
    """Measure `rounds` rounds per batch size, engine by engine, after a small warm-up. `busy` loads a core; `weights` as in `Plan`."""
    plan = Plan(model, max(batches), PROMPT + new, max(batches) * PROMPT, weights)
    rows: list[Row] = []
    slow: set[tuple[str, int]] = set()
    with _opened(peers, plan) as (engines, result):
        result["rows"] = rows
        for engine in engines.values():
            engine.run(_prompts(f"warm {engine.name}", 1), min(new, 8))
        with neighbour(busy):
            for turn in range(rounds):
                for batch in batches:
                    for name in [name for name in engines if (name, batch) not in slow]:
                        row = _turn(engines, name, turn, batch, new, result["failed"])
                        rows += row
                        if name != "ours" and any(item["prefill_s"] + item["decode_s"] > SLOW_S for item in row):
                            slow.add((name, batch))
                save(result)
    return result


def _turn(engines: dict[str, EngineProcess], name: str, turn: int, batch: int, new: int, failed: dict[str, str]) -> list[Row]:
    """Run one engine's turn. An engine that fails returns nothing and is excluded from then on."""
    time.sleep(SETTLE_S)
    try:
        run = engines[name].run(_prompts(f"{turn} {batch}", batch), new)
    except EngineError as error:
        if name == "ours":
            raise
        failed[name] = f"batch {batch}: {error}"
        del engines[name]
        return []
    rates = {"prefill": run.prefill_rate, "decode": run.decode_rate}
    return [{"engine": name, "batch": batch, "round": turn, "context": PROMPT} | rates | asdict(run)]


def context(
    model: Path, peers: Mapping[str, Peer], shapes: Sequence[tuple[int, int]], rounds: int, save: Save, new: int = 16
) -> dict[str, Any]:
    """Measure decode after long prompts for each (batch, prompt length). Prompts run once; then the engines decode in turns."""
    everything: dict[str, Any] = {"engines": {}, "failed": {}, "rows": []}
    for batch, length in shapes:
        plan = Plan(model, batch, length + (rounds + 1) * new + 1, max(length, 4096))
        with _opened(peers, plan) as (engines, result):
            everything["engines"] |= result["engines"]
            everything["failed"] |= result["failed"]
            prompts = _prompts(f"context {batch}", batch, length)
            before = {name: engine.start(prompts, 1 + (rounds + 1) * new)["tokens"] for name, engine in engines.items()}
            for turn in range(-1, rounds):  # the first round is a warm-up
                for name, engine in engines.items():
                    time.sleep(SETTLE_S)
                    done = engine.go_on(new)
                    made, before[name] = done["tokens"] - before[name], done["tokens"]
                    row = {"engine": name, "batch": batch, "context": length, "round": turn, "decode": made / done["seconds"]}
                    everything["rows"] += [row] if turn >= 0 else []
            for engine in engines.values():
                check(engine.end(), batch, 1 + (rounds + 1) * new)
        save(everything)
    return everything


@contextmanager
def _opened(peers: Mapping[str, Peer], plan: Plan) -> Iterator[tuple[dict[str, EngineProcess], dict[str, Any]]]:
    """Open all engines that can run the plan, with their descriptions; others are left out, with the reason."""
    result: dict[str, Any] = {"engines": {}, "failed": {}}
    engines: dict[str, EngineProcess] = {}
    with ExitStack() as stack:
        for name, peer in peers.items():
            engine = stack.enter_context(peer.process(name))
            try:
                result["engines"][name] = engine.open(plan)
                engines[name] = engine
            except EngineError as error:
                result["failed"][name] = str(error)
        if "ours" not in engines:
            raise EngineError(f"there is nothing to compare with: {result['failed']}")
        yield engines, result


def _prompts(seed: str, count: int, length: int = PROMPT) -> list[list[int]]:
    return [prompt(f"{seed} {row}", length)[0] for row in range(count)]
