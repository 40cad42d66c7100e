"""Comparison with other engines on this machine: `python -m bench.peers prepare`, then `measure`, then `report`.

    python -m bench.peers prepare                         environments, builds and models, once (an hour on two cores, 8 GB)
    python -m bench.peers measure [PART ...] [--fresh]    writes bench/results/peers/CHIP/PART.json; complete parts are skipped
    python -m bench.peers report                          writes docs/benchmarks.md and its pictures from bench/results/peers

Run it on an idle machine: with other load, the results are meaningless.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from bench.peers import parts, venvs
from bench.report.document import write_document
from bench.results import PEERS, complete, peers_folder


def measure(names: list[str], rounds: int, new: int, out: Path, fresh: bool) -> None:
    """Measure part by part, keeping complete parts."""
    for name in names:
        if not fresh and complete(out, name):
            print(f"{name}: there already; --fresh measures it again", flush=True)
            continue
        start = time.monotonic()
        parts.PARTS[name].measure(parts.Run(name, out, rounds, new))
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare")
    measuring = commands.add_parser("measure")
    measuring.add_argument("parts", nargs="*", choices=[[], *parts.PARTS], default=list(parts.PARTS))
    measuring.add_argument("--rounds", type=int, default=3)
    measuring.add_argument("--new", type=int, default=64, help="tokens to generate per prompt")
    measuring.add_argument("--out", type=Path, default=peers_folder())
    measuring.add_argument("--fresh", action="store_true", help="measure complete parts again")
    reporting = commands.add_parser("report")
    reporting.add_argument("--results", type=Path, default=PEERS)
    options = parser.parse_args()
    if options.command == "prepare":
        venvs.prepare()
    elif options.command == "measure":
        measure(options.parts or list(parts.PARTS), options.rounds, options.new, options.out, options.fresh)
    else:
        write_document(options.results)


if __name__ == "__main__":
    main()
