"""`make soak`: the long forms, one after the other, or those named. `python -m tests.soak --minutes 60 scheduler http`."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from collections.abc import Callable

Run = Callable[[float], list[str]]
"""A soak of so many minutes, where its length is a matter of time; what went wrong, a line each."""


def module(name: str) -> Run:
    """`run` of a module, imported when its turn comes."""
    return lambda minutes: list(importlib.import_module(name).run(minutes))


def command(*arguments: str) -> Run:
    """A program of its own, which fails by its exit status."""

    def run(minutes: float) -> list[str]:
        status = subprocess.run([sys.executable, "-m", *arguments], check=False).returncode
        return [f"{' '.join(arguments)}: exit status {status}"] if status else []

    return run


SOAKS: dict[str, Run] = {
    "machine": command("tests.soak.machine"),
    "oom": command("tests.faults.oom", "--requests", "50000"),
    "scheduler": module("tests.soak.scheduler"),
    "kills": command("tests.soak.kills", "--kills", "200"),
    "disconnects": command("tests.soak.disconnects", "--count", "20000"),
    "http": module("tests.soak.http"),
    "mixed": module("tests.soak.mixed"),
    "mutants": module("tests.soak.mutants"),
}
"""By name, in this order. Whoever has another one adds a line."""


def main() -> None:
    """Run them; the exit status is 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("names", nargs="*", help="default: all")
    arguments = parser.parse_args()
    found: list[str] = []
    for name in arguments.names or SOAKS:
        start = time.monotonic()
        wrong = SOAKS[name](arguments.minutes)
        print(f"{name}: {'; '.join(wrong) or 'all well'} ({time.monotonic() - start:.0f} s)", flush=True)
        found += wrong
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
