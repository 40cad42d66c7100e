"""Placement on many replicas: goodput, imbalance, hits and the cost of a decision, in virtual time.

    python -m bench.replicas [--replicas 4 16 100 1000] [--seconds 120] [--load 0.9] [--json OUT]
    python -m bench.replicas --saturated --replicas 16 1000 --load 2.4 2.9 --queued 8

Conversations begin at a rate proportional to the number of replicas. With --saturated, they have been beginning for long, and their turns
arrive whether answers are done or not, so that the offered load does not fall when replicas are slow; the first third of the time warms the
caches and is not counted. The placement and the prefix indexes are those that serve; each
device is a roofline model. "of big cache": hits relative to one cache as big as all together that sees every request.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.replicas.conversations import conversations
from bench.replicas.policies import POLICIES
from bench.replicas.simulation import Result, Simulation, Window
from bench.scheduling.device import Roofline
from tgi_core.replicas.holders import Holders

BLOCK, CACHE_TOKENS = 32, 120_000
"""Tokens of a block, and of a replica's cache."""


def simulate(policy: str, count: int, seconds: float, load: float, queued: float | None = None, seed: int = 0) -> Result:
    """Run one simulation. `load`: conversations per second and replica. `queued`: turns that may wait per replica, if saturated."""
    roofline, holders = Roofline(block_size=BLOCK, num_blocks=CACHE_TOKENS // BLOCK), Holders()
    placement = POLICIES[policy](roofline.block_size, holders)
    saturated = queued is not None
    window = Window() if queued is None else Window(seconds / 3, seconds, queued * count)
    begins = list(conversations(seed, load * count, seconds, roofline.block_size, 4 * count, saturated))
    gc.freeze()
    gc.disable()
    try:
        return Simulation(count, roofline, placement, holders, window).run(begins)
    finally:
        gc.enable()


_HEADINGS = (
    *("replicas", "load", "placement", "requests", "refused", "good", "good/s each", "busy", "imbalance", "hits"),
    *("of big cache", "first p50 s", "p99 s", "µs a decision", "p99 µs"),
)


def _cells(made: Result, count: int) -> list[str]:
    return [
        f"{made.requests:,}",
        f"{made.refused / made.requests:.1%}",
        f"{made.good / made.requests:.1%}",
        f"{made.good / made.seconds / count:.2f}",
        f"{made.busy:.0%}",
        f"{made.imbalance:.3f}",
        f"{made.hit_tokens / made.query_tokens:.1%}",
        f"{made.hit_tokens / max(1, made.big_cache_hit_tokens):.1%}",
        f"{made.first_p50:.3f}",
        f"{made.first_p99:.3f}",
        *(f"{each:.1f}" for each in made.decision_us),
    ]


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", nargs="+", type=int, default=[4, 16, 100, 1000])
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--seconds", type=float, default=120.0, help="during which conversations begin")
    parser.add_argument("--load", nargs="+", type=float, default=[0.9], help="conversations per second and replica")
    parser.add_argument("--saturated", action="store_true", help="keep up the load, and measure in the steady state")
    parser.add_argument(
        "--queued", type=float, default=8.0, help="--saturated: turns that may wait, per replica; further ones are refused"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    table = Table(*_HEADINGS)
    rows: list[dict[str, object]] = []
    for count, load, policy in itertools.product(arguments.replicas, arguments.load, arguments.policies):
        made = simulate(policy, count, arguments.seconds, load, arguments.queued if arguments.saturated else None)
        rows.append({"replicas": count, "load": load, "policy": policy, **asdict(made)})
        table.add_row(str(count), f"{load:g}", policy, *_cells(made, count))
    Console(width=180).print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
