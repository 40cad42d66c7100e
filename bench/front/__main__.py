"""Serving overhead: CPU time per token of the entire server, over HTTP, with a device that uses none.

    python -m bench.front [--backend null] [--streams 32 64 256] [--tokens 200] [--seconds 6] [--step-ms 0] [--replicas 1 2 4] [--json OUT]

Measures both modes of `tgi serve` (shard in a child process or in the server's) and both streaming routes (TGI's and OpenAI's). CPU
time is the processes' own; "spin" is the time of one round of an empty loop during the run, to distinguish a slow machine from a
slow server. With `--step-ms`, each step of the device takes that long, so that the server is not saturated and latencies are
meaningful; up to three steps of the time to first token are the device's. With replicas, each gets as many streams;
"per router core" counts the CPU time of the router's process alone, which serves all of them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.front.runs import FORMS, Run, RunSelection, runs


def row(run: Run) -> list[str]:
    """Format a line of the table."""
    made = run.measured
    each = [f"{1e6 * spent / made.tokens:.1f}" for spent in made.cpu]
    waits = [f"{1e3 * wait:.1f}" for wait in (*made.first, *made.gaps)]
    whole = sum(made.cpu) / made.tokens
    told = [
        f"{made.spin_ns:.0f}",
        f"{made.tokens / made.seconds:.0f}",
        f"{1e6 * whole:.1f}",
        " + ".join(each),
        f"{1 / whole:.0f}",
        f"{made.tokens / made.cpu[0]:.0f}",
    ]
    return [run.form, str(run.replicas), run.route, str(run.streams), *told, *waits]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="null")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--routes", nargs="+", choices=("native", "chat"), default=["native", "chat"])
    parser.add_argument("--streams", nargs="+", type=int, default=[32, 64, 256])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--replicas", nargs="+", type=int, default=[1])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    selection = RunSelection(
        arguments.forms,
        arguments.routes,
        arguments.streams,
        arguments.tokens,
        arguments.seconds,
        arguments.step_ms,
        arguments.backend,
        arguments.replicas,
    )
    shown = ("form", "replicas", "route", "streams")
    headings = (*shown, "spin ns", "tok/s", "µs CPU/token", "by process", "tok/s per core", "per router core")
    waits = ("first p50 ms", "p99", "gap p50 ms", "p99")
    table = Table(*headings, *waits)
    found: list[Run] = []
    for run in runs(selection):
        found.append(run)
        table.add_row(*row(run))
    Console(width=160).print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(run) for run in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
