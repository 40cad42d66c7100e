"""Whether `tgi bench` finds what this repository's own harness finds: `python -m bench.serving.agreement [--servers ours] [--rounds 5]`.

Both measure the same server in turns, with prompts of the same length: the harness's round of `bench.peers.http`, and `tgi bench batch`.
The model's answers repeat words of their prompts: a server that holds back incomplete characters may stream nothing of random bytes.
`paced` is this project's server with a device whose steps take 20 ms and no CPU time, so that a busy machine matters less.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.front.null_backend import installed
from bench.peers.http import SERVERS, START_S, Served, measure_round
from bench.peers.offline import NEW, PROMPT
from bench.peers.venvs import HOME
from bench.random_model import make_looping
from bench.report.tables import table
from bench.serving.server import Server, tgi_command

PACED, STEP_MS = "paced", 20.0
_BODIES = {"llama-server": {"cache_prompt": False}}
_COLUMNS = {"rate": ("rate", 1.0), "first_p50_s": ("first_p50_ms", 1e-3)}
"""The harness's columns: name and factor of those of `tgi bench`."""


def compare(name: str, model: Path, clients: Sequence[int], rounds: int, new: int) -> list[dict[str, Any]]:
    """One row per number of clients and round, with the figures of both."""
    rows = []
    with ExitStack() as stack:
        served = SERVERS[name] if name != PACED else stack.enter_context(_paced())
        server = stack.enter_context(Server(served.command(model), HOME / "agreement.log", served.environment))
        server.wait_ready(START_S)
        measure_round(server, served, model, "warm", max(clients), new)
        for turn in range(rounds):
            for count in clients:
                measure_round(server, served, model, f"warm {turn} {count}", count, new)  # as tgi bench does before it measures
                harness = measure_round(server, served, model, f"{turn} {count}", count, new)
                row = {
                    "server": name,
                    "clients": count,
                    "round": turn,
                    "tgi bench": _tgi_bench(server.port, name, served.path, count, turn, new),
                }
                rows.append(row | {"harness": {column: harness[column] for column in _COLUMNS}})
    return rows


@contextmanager
def _paced() -> Iterator[Served]:
    with installed(STEP_MS) as environment:
        yield replace(SERVERS["ours"], command=lambda model: tgi_command(model, "null"), environment=environment)


def _tgi_bench(port: int, name: str, path: str, clients: int, turn: int, new: int) -> dict[str, float]:
    api = "tgi" if path == "/generate_stream" else "completions"
    url, sizes = f"http://127.0.0.1:{port}", ["--prompt-tokens", str(PROMPT), "--output-tokens", str(new)]
    body = json.dumps(_BODIES.get(name, {}))
    options = ["--api", api, "--batch", str(clients), "--rounds", "1", "--seed", str(turn), "--body", body]
    command = [sys.executable, "-m", "tgi_core", "bench", "batch", url, *sizes, *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"tgi bench against {name}: {done.stderr}")
    [row] = json.loads(done.stdout)["rows"]
    return {column: factor * row[ours] for column, (ours, factor) in _COLUMNS.items()}


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Medians of both with their range over the rounds, and the ratio, by server and number of clients. A ratio says no more than the
    ranges allow."""

    def lines() -> Any:
        for name, count in dict.fromkeys((row["server"], row["clients"]) for row in rows):
            here = [row for row in rows if (row["server"], row["clients"]) == (name, count)]
            for column in _COLUMNS:
                both = [[row[who][column] for row in here] for who in ("tgi bench", "harness")]
                shown = [f"{median(values):.4g} ({min(values):.4g}–{max(values):.4g})" for values in both]
                yield [name, count, column, *shown, f"{median(both[0]) / median(both[1]):.3f}"]

    return table(["server", "clients", "figure", "tgi bench", "harness", "ratio"], lines())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.serving.agreement", description=__doc__)
    parser.add_argument("--servers", nargs="+", choices=(*SERVERS, PACED), default=["ours"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    model = make_looping()
    rows = [row for name in options.servers for row in compare(name, model, options.clients, options.rounds, NEW)]
    print(report(rows))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
