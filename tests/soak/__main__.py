"""`make soak`: the long forms, one after the other, or those named. `python -m tests.soak --minutes 60 --record scheduler http`."""

from __future__ import annotations

import argparse
import importlib
import io
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass

from bench.results import RESULTS, save

Run = Callable[[float], list[str]]
"""A soak of so many minutes, where its length is a matter of time; what went wrong, a line each. What it prints are its figures."""


@dataclass(frozen=True, slots=True)
class Soak:
    """A long form, the promise that it tries, and the test that is its short form."""

    promise: str
    test: str
    run: Run


class _Echo(io.StringIO):
    """Keeps what is printed, and prints it."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)  # type: ignore[union-attr]
        return super().write(text)


def module(name: str) -> Run:
    """`run` of a module, imported when its turn comes."""
    return lambda minutes: list(importlib.import_module(name).run(minutes))


def command(*arguments: str) -> Run:
    """A program of its own, which fails by its exit status."""

    def run(minutes: float) -> list[str]:
        with subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True) as child:
            for line in child.stdout or ():
                print(line, end="", flush=True)
        return [f"{' '.join(arguments)}: exit status {child.returncode}"] if child.returncode else []

    return run


SOAKS = {
    "machine": Soak(
        "The scheduler's invariants hold in every reachable state",
        "`tests/scheduler/test_machine.py`",
        command("tests.soak.machine"),
    ),
    "oom": Soak(
        "Steps that run out of memory only cause a pause",
        "`tests/faults/test_oom.py`",
        command("tests.faults.oom", "--requests", "50000"),
    ),
    "scheduler": Soak(
        "A day of requests leaks nothing in the scheduler",
        "`tests/soak/test_scheduler.py`",
        module("tests.soak.scheduler"),
    ),
    "kills": Soak(
        "Killing a shard changes no response",
        "`tests/serve/test_kill_matrix.py`",
        command("tests.soak.kills", "--kills", "200"),
    ),
    "stops": Soak(
        "A hung shard changes no response",
        "`tests/serve/test_kill_matrix.py`",
        command("tests.soak.kills", "--kills", "50", "--signal", "STOP"),
    ),
    "replicas": Soak(
        "Killing one replica after another changes no response, and the others keep up",
        "`tests/serve/test_replicas.py`",
        module("tests.soak.replicas"),
    ),
    "late": Soak(
        "Steps that fail when they are read change no answer",
        "`tests/soak/test_late.py`",
        command("tests.soak.late", "--faults", "200"),
    ),
    "speculation": Soak(
        "Drafts change no response",
        "`tests/serve/test_speculation.py`",
        command("tests.soak.speculation", "--requests", "2000", "--kills", "40"),
    ),
    "disconnects": Soak(
        "Clients that disconnect leave nothing behind",
        "`tests/soak/test_disconnects.py`",
        command("tests.soak.disconnects", "--count", "20000"),
    ),
    "http": Soak("Nothing grows over a backend that fails", "`tests/soak/test_http.py`", module("tests.soak.http")),
    "mixed": Soak(
        "Memory does not grow with new grammars, schemas, tools, salts and adapters",
        "`tests/soak/test_mixed.py`",
        module("tests.soak.mixed"),
    ),
    "static": Soak(
        "Nothing is compiled in traffic on a static device",
        "`tests/engine/static/test_compiling.py`",
        module("tests.soak.static"),
    ),
    "mutants": Soak(
        "No client input can crash or break the server", "`tests/router/test_mutator.py`", module("tests.soak.mutants")
    ),
}
"""By name, in this order. Whoever has another one adds a line."""


def main() -> None:
    """Run them; the exit status is 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--record", action="store_true", help="keep the figures, of which docs/reliability.md is made")
    parser.add_argument("names", nargs="*", help="default: all")
    arguments = parser.parse_args()
    found: list[str] = []
    for name in arguments.names or SOAKS:
        start, soak = time.monotonic(), SOAKS[name]
        with redirect_stdout(_Echo()) as printed:
            wrong = soak.run(arguments.minutes)
        seconds = time.monotonic() - start
        print(f"{name}: {'; '.join(wrong) or 'all well'} ({seconds:.0f} s)", flush=True)
        if arguments.record:
            figures = printed.getvalue().splitlines()
            told = {"promise": soak.promise, "test": soak.test, "figures": figures, "wrong": wrong, "seconds": seconds}
            save(RESULTS / "reliability", f"soak-{name}", told, done=True)
        found += wrong
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
