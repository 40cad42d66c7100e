"""What serving costs: CPU time per token of the whole server, over HTTP, with a device that takes none.

    python -m bench.front [--backend null] [--streams 32 64 256] [--tokens 200] [--seconds 6] [--step-ms 0] [--json OUT]

Both forms of `tgi serve` (the shard in a child process, and in the server's own), both ways to stream (TGI's and OpenAI's). CPU time
is the processes' own; "spin" is what a round of an empty loop took meanwhile, to tell a machine that is slow at the moment from a server
that is. With `--step-ms` the device takes that long for each step, so that the server is not saturated and waits mean something: of the
time to the first token up to three steps are the device's.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.front.runs import FORMS, Run, Wish, runs


def row(run: Run) -> list[str]:
    """A line of the table."""
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
    ]
    return [run.form, run.route, str(run.streams), *told, *waits]


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
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    wish = Wish(
        arguments.forms,
        arguments.routes,
        arguments.streams,
        arguments.tokens,
        arguments.seconds,
        arguments.step_ms,
        arguments.backend,
    )
    headings = ("form", "route", "streams", "spin ns", "tok/s", "µs CPU/token", "by process", "tok/s per core")
    waits = ("first p50 ms", "p99", "gap p50 ms", "p99")
    table = Table(*headings, *waits)
    found: list[Run] = []
    for run in runs(wish):
        found.append(run)
        table.add_row(*row(run))
    Console(width=160).print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(run) for run in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
