"""This project's server alone: `python -m bench.serving [--rounds 3]` prints its overhead, inter-token gaps, startup time and
memory."""

from __future__ import annotations

import argparse

from bench.random_model import make
from bench.report import tables
from bench.serving import ours


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="bench.serving", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = make()
    print(tables.null(ours.null(options.rounds)), flush=True)
    print(tables.start(ours.start_and_memory(model, options.rounds)), flush=True)
    print(tables.arrivals(ours.arrivals(model, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
