"""The OpenAPI document against the server: `python -m tests.surface.fuzz --cases 50000`.

schemathesis makes requests from the document, good ones and broken ones, and holds every answer against it. The server is the
reference backend with a short context, so that a case costs milliseconds.

Two things of the document are left out. Its examples, which make many tokens: tests/surface/test_docs.py sends them. And bounds that the
rules of `tgi_router.validation` keep, not the types: a native stream tells a broken rule with the status 200, and /tokenize looks at no
parameter; tests/router/test_openapi.py tries these bounds.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from tests.serve.process import served

CASES_PER_EXAMPLE = 45
"""How many cases one more example per operation adds, at most: with many examples it is about half of that."""

ROUND = 10_000
"""Cases to ask for at a time, so that something is told on the way."""

SECONDS_PER_ANSWER = 5

BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def loosened(value: Any) -> Any:
    """A part of the document without examples and bounds of rules."""
    if isinstance(value, list):
        return [loosened(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name: loosened(each) for name, each in value.items() if name not in ("example", "examples")}
    if kept.get("type") == "number" or kept.get("minimum") == 1:
        return {name: each for name, each in kept.items() if name not in BOUNDS}
    if "regex" in kept.get("enum", ()) or "maxLength" in kept:
        return {"type": "string"}
    return kept


def fuzz(cases: int, seed: int) -> tuple[int, int, str]:
    """Run about `cases` cases; how many there were, schemathesis' exit status, and its report."""
    examples = max(10, cases // CASES_PER_EXAMPLE)
    program = str(Path(sys.executable).with_name("schemathesis"))
    # A 422 for a body that the document allows is right where a rule spans fields or depends on the model.
    options = ["--exclude-checks", "positive_data_acceptance", "--max-examples", str(examples), "--seed", str(seed)]
    options += ["--suppress-health-check", "too_slow"]  # that is about the machine
    with TemporaryDirectory() as folder, served("--backend", "reference", "--max-total-tokens", "256") as server:
        document = Path(folder) / "openapi.json"
        document.write_text(json.dumps(loosened(httpx.get(f"{server.url}/api-doc/openapi.json", timeout=60).json())))
        place = [str(document), "--url", server.url, "--request-timeout", str(SECONDS_PER_ANSWER)]
        command = [program, "run", *place, *options]
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    found = re.search(r"(\d[\d,]*) generated", result.stdout)
    return int(found.group(1).replace(",", "")) if found else 0, result.returncode, result.stdout + result.stderr


def main() -> None:
    """The long form, on demand: rounds with a seed each, until there were enough cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    done, seed = 0, arguments.seed
    while done < arguments.cases:
        cases, status, report = fuzz(min(ROUND, arguments.cases - done), seed)
        done += cases
        print(
            f"{report if status or not cases else ''}seed {seed}: {cases} cases, exit status {status}; {done} in all", flush=True
        )
        if status or not cases:
            sys.exit(status or 1)
        seed += 1


if __name__ == "__main__":
    main()
