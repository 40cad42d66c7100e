"""Runs a script of calls in an interpreter that has its client, and reads what it prints."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.clients.environments import environment
from tests.serve.process import ServerProcess, served

SCRIPTS = Path(__file__).parent / "scripts"
KEY = "sesame"
"""Calls that are refused for load ask for more than 16 generations at once: `n`, prompts and `best_of` each count."""
SERVER = (
    "--backend",
    "cpu",
    "--api-key",
    KEY,
    "--enable-prefill-logprobs",
    "--max-concurrent-requests",
    "16",
    "--max-best-of",
    "32",
)

_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call went. `detail` is what it shows, or how it failed."""

    name: str
    ok: bool
    seconds: float
    detail: str


@contextmanager
def server() -> Iterator[ServerProcess]:
    """The demo model with a key and small limits, for all clients."""
    with served(*SERVER) as started:
        yield started


def outcomes(python: Path, script: str, url: str, names: Sequence[str] = ()) -> list[Outcome]:
    """What the calls of a script came to. A script that breaks off is one more call that failed."""
    command: list[str | Path] = [python, SCRIPTS / f"{script}.py", url, KEY, *names]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=environment(), check=False)
    except subprocess.TimeoutExpired as error:
        return [Outcome(script, False, _SECONDS, f"not over after {_SECONDS} s: {error.stdout!r}")]
    made = [Outcome(**json.loads(line)) for line in ended.stdout.splitlines()]
    if not made or (ended.returncode != 0 and all(outcome.ok for outcome in made)):
        made.append(Outcome(script, False, 0.0, f"ended with {ended.returncode}: {ended.stderr[-4000:]}"))
    return made
