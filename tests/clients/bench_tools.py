"""A short run of each benchmark tool that others made, on one server with the demo model.

    python -m tests.clients.bench_tools [OUT]

Ends with 0 only if every tool completes each of its requests. Their reports lie in OUT, which is a temporary folder unless named.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic

from tests.clients.environments import environment, install, versions
from tests.clients.outcomes import KEY, server
from tests.clients.report import show
from tgi_core.model_files import DEMO

REQUESTS = 20
_SECONDS = 300
_TEXT = {"grammar": {"type": "regex", "value": "[a-z ]{64}"}}
"""Prompts of random words make the demo model end at once, and an answer without text counts as failed."""


@dataclass(frozen=True, slots=True)
class Run:
    """A tool at a route. `command` takes the server and a folder for reports, `completed` reads them."""

    tool: str
    route: str
    command: Callable[[str, Path], list[str]]
    completed: Callable[[Path], int]


def aiperf(*more: str) -> Callable[[str, Path], list[str]]:
    """aiperf on TGI's own routes."""

    def command(url: str, out: Path) -> list[str]:
        load = ["--concurrency", "2", "--request-count", str(REQUESTS), "--isl", "32", "--osl", "16"]
        where = ["--url", url, "--api-key", KEY, "--tokenizer", str(DEMO.resolve()), "--artifact-dir", str(out)]
        quiet = ["--ui", "none", "--no-gpu-telemetry", "--no-server-metrics", "--extra-inputs", json.dumps(_TEXT)]
        return ["aiperf", "profile", "-m", "demo", "--endpoint-type", "huggingface_generate", *where, *load, *quiet, *more]

    return command


def aiperf_completed(out: Path) -> int:
    """Requests that aiperf has found answered."""
    report = json.loads((out / "profile_export_aiperf.json").read_text())
    return 0 if report["was_cancelled"] else int(report["request_count"]["avg"])


def guidellm(url: str, out: Path) -> list[str]:
    """guidellm on chat."""
    return [
        *("guidellm", "run", "--disable-console-interactive"),
        *("--backend", f"kind=openai_http,target={url},api_key={KEY}"),
        *("--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=hf_auto,model={DEMO.resolve()}"),
        *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16"),
        *("--output", f"kind=json,path={out / 'guidellm.json'}"),
    ]


def guidellm_completed(out: Path) -> int:
    """Requests that guidellm has found answered."""
    (made,) = json.loads((out / "guidellm.json").read_text())["benchmarks"]
    return int(made["metrics"]["request_totals"]["successful"])


RUNS = (
    Run("aiperf", "/generate", aiperf(), aiperf_completed),
    Run("aiperf", "/generate_stream", aiperf("--streaming"), aiperf_completed),
    Run("guidellm", "/v1/chat/completions", guidellm, guidellm_completed),
)


def main(reports: Path) -> int:
    """The status to end with."""
    programs = {run.tool: install(run.tool).parent for run in RUNS}
    rows: list[tuple[str, ...]] = []
    failed = 0
    with server() as running:
        for run in RUNS:
            out = reports / f"{run.tool}{run.route.replace('/', '-')}"
            out.mkdir(parents=True, exist_ok=True)
            started = monotonic()
            completed = _completed(run, programs[run.tool], running.url, out)
            failed += completed != REQUESTS
            rows.append((versions(run.tool), run.route, f"{completed} of {REQUESTS}", f"{monotonic() - started:.1f} s"))
    show(("tool", "route", "completed", "time"), rows)
    print(f"reports: {reports}")
    return 1 if failed else 0


def _completed(run: Run, programs: Path, url: str, out: Path) -> int:
    program, *arguments = run.command(url, out)
    with (out / "output.txt").open("w") as output:
        command: list[str | Path] = [programs / program, *arguments]
        ended = subprocess.run(command, stdout=output, stderr=output, timeout=_SECONDS, env=environment(), check=False)
    if ended.returncode != 0:
        print(f"{run.tool} at {run.route} ended with {ended.returncode}:\n{(out / 'output.txt').read_text()[-4000:]}")
        return 0
    return run.completed(out)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(mkdtemp(prefix="bench-tools-"))))
