"""Makes the calls of all clients, each from an environment of its own, on one server with the demo model.

    python -m tests.clients.run [CLIENT…]

Ends with 0 only if every call shows what it claims.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import monotonic

from tests.clients.environments import HOME, install, versions
from tests.clients.outcomes import Outcome, outcomes, server
from tests.clients.report import show

CLIENTS = {
    "openai-2": ("call_openai", "call_openai_tools", "call_openai_responses"),
    "openai-3": ("call_openai", "call_openai_tools", "call_openai_responses"),
    "anthropic": ("call_anthropic",),
    "hub-0.36": ("call_hub",),
    "hub-2": ("call_hub",),
    "text-generation": ("call_text_generation",),
    "langchain": ("call_langchain",),
    "litellm": ("call_litellm",),
    "langchain-agents": ("call_langchain_agents",),
    "pydantic-ai": ("call_pydantic_ai", "call_pydantic_ai_agents"),
    "llama-index": ("call_llama_index",),
    "instructor": ("call_instructor",),
    "smolagents": ("call_smolagents",),
    "npm": ("call_npm", "call_browser"),
}
"""The scripts of each client."""

ENOUGH = 200
"""Fewer calls than this show too little."""


def main(wanted: list[str]) -> int:
    """The status to end with."""
    if unknown := set(wanted) - CLIENTS.keys():
        sys.exit(f"no such clients: {', '.join(sorted(unknown))}; there are {', '.join(CLIENTS)}")
    names = wanted or list(CLIENTS)
    failed: list[tuple[str, Outcome]] = []
    rows: list[tuple[str, ...]] = []
    total = 0
    interpreters = {name: _installed(name) for name in names}
    with server() as running:
        for name in names:
            started = monotonic()
            made = [
                outcome
                for script in CLIENTS[name]
                for outcome in outcomes(interpreters[name], script, running.url, packages=HOME / name)
            ]
            wrong = [outcome for outcome in made if not outcome.ok]
            failed += [(name, outcome) for outcome in wrong]
            total += len(made)
            rows.append((name, versions(name), str(len(made)), str(len(made) - len(wrong)), f"{monotonic() - started:.1f} s"))
    for name, outcome in failed:
        print(f"\n{name}: {outcome.name} failed\n{outcome.detail}")
    show(("client", "version", "calls", "passed", "time"), rows)
    print(f"{total} calls, {len(failed)} failed")
    return 1 if failed or (not wanted and total < ENOUGH) else 0


def _installed(name: str) -> Path:
    try:
        return install(name)
    except (subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"{name} cannot be installed: {error}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
