"""Placement on many replicas: goodput, imbalance, hits and the cost of a decision, in virtual time.

    python -m bench.replicas [--replicas 4 16 100 1000] [--seconds 120] [--load 0.9] [--json OUT]

Conversations arrive at a rate proportional to the number of replicas. The placement and the prefix indexes are those that serve; each
device is a roofline model. "of big cache": hits relative to one cache as big as all together that sees every request.
"""

from __future__ import annotations

import argparse
import gc
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.replicas.conversations import conversations
from bench.replicas.policies import POLICIES
from bench.replicas.simulation import Result, Simulation
from bench.scheduling.device import Roofline
from tgi_core.replicas.holders import Holders

BLOCK, CACHE_TOKENS = 32, 120_000
"""Tokens of a block, and of a replica's cache."""


def simulate(policy: str, count: int, seconds: float, load: float, seed: int = 0) -> Result:
    """Run one simulation. `load`: conversations per second and replica."""
    roofline, holders = Roofline(block_size=BLOCK, num_blocks=CACHE_TOKENS // BLOCK), Holders()
    placement = POLICIES[policy](roofline.block_size, holders)
    begins = list(conversations(seed, load * count, seconds, roofline.block_size, systems=4 * count))
    gc.freeze()
    gc.disable()
    try:
        return Simulation(count, roofline, placement, holders).run(begins)
    finally:
        gc.enable()


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", nargs="+", type=int, default=[4, 16, 100, 1000])
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--seconds", type=float, default=120.0, help="during which conversations begin")
    parser.add_argument("--load", type=float, default=0.9, help="conversations per second and replica")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    headings = ("replicas", "placement", "requests", "good", "busy", "imbalance", "hits", "of big cache", "first p50 s", "p99 s")
    table = Table(*headings, "µs a decision", "p99 µs")
    rows: list[dict[str, object]] = []
    for count in arguments.replicas:
        for policy in arguments.policies:
            made = simulate(policy, count, arguments.seconds, arguments.load)
            rows.append({"replicas": count, "policy": policy, **asdict(made)})
            table.add_row(
                str(count),
                policy,
                f"{made.requests:,}",
                f"{made.good / made.requests:.1%}",
                f"{made.busy:.0%}",
                f"{made.imbalance:.3f}",
                f"{made.hit_tokens / made.query_tokens:.1%}",
                f"{made.hit_tokens / max(1, made.big_cache_hit_tokens):.1%}",
                f"{made.first_p50:.3f}",
                f"{made.first_p99:.3f}",
                *(f"{each:.1f}" for each in made.decision_us),
            )
    Console(width=160).print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
