"""The calls of the clients that the development environment has; `make test-clients` makes those of all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.outcomes import outcomes, server

PYTHON = Path(sys.executable)
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where the demo model is served."""
    with server() as running:
        yield running.url


@pytest.mark.parametrize("script", ["call_hub", "call_openai", "call_openai_tools", "call_openai_responses"])
def test_every_call_shows_what_it_claims(url: str, script: str) -> None:
    """Each call of a script, made with the client's released package, gets what the client expects."""
    made = outcomes(PYTHON, script, url)
    failed = "\n".join(f"{outcome.name}: {outcome.detail}" for outcome in made if not outcome.ok)
    assert not failed, failed


@pytest.mark.parametrize(
    ("script", "name", "told"),
    [
        ("call_hub", "text", "ConnectError"),
        ("call_hub", "nonsense", "no such calls: nonsense"),
        ("call_nobody", "text", "No such file"),
    ],
)
def test_failures_are_told(script: str, name: str, told: str) -> None:
    """Without a server, without the call, without the script: one call that failed, and why."""
    (outcome,) = outcomes(PYTHON, script, NOBODY, [name])
    assert not outcome.ok and told in outcome.detail
