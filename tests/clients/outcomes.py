"""Runs a script of calls in an interpreter that has its client, and reads what it prints."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.clients.environments import HOME, environment
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


def outcomes(interpreter: Path, script: str, url: str, names: Sequence[str] = (), packages: Path = HOME) -> list[Outcome]:
    """What the calls of a script came to. One for Node finds its packages in the folder `packages`.

    A script that breaks off is one more call that failed.
    """
    file = SCRIPTS / f"{script}{'.mjs' if interpreter.name == 'node' else '.py'}"
    command: list[str | Path] = [interpreter, file, url, KEY, *names]
    known = environment() | {"CLIENT_PACKAGES": str(packages)}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=known, check=False)
    except subprocess.TimeoutExpired as error:
        return [Outcome(script, False, _SECONDS, f"not over after {_SECONDS} s: {error.stdout!r}")]
    made = [Outcome(**json.loads(line)) for line in ended.stdout.splitlines()]
    if not made or (ended.returncode != 0 and all(outcome.ok for outcome in made)):
        made.append(Outcome(script, False, 0.0, f"ended with {ended.returncode}: {ended.stderr[-4000:]}"))
    return made
