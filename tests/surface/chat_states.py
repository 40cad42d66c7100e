"""What the page at /ui can look like. `python -m tests.surface.chat_states FOLDER` takes a picture of each state."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser

from tests.router.scripted import HOLD, Script
from tests.surface.browsing import Scheme, chromium
from tests.surface.chat_page import ChatPage, says, scripted, words
from tgi_core.scheduler.types import GenerationFailed

SIZES = {"phone": (390, 844), "laptop": (1280, 800)}
SCHEMES: tuple[Scheme, ...] = ("light", "dark")

SHORT = "The capital of France is Paris. It lies on the Seine, and about two million people live there."
LONG = "\n\n".join(f"{number}. {SHORT} {SHORT[::-1].capitalize()}" for number in range(1, 25))
CALL = json.dumps({"name": "weather", "arguments": {"city": "Paris", "days": [1, 2]}})
TOOLS = json.dumps([{"name": "weather", "description": "The weather in a city", "parameters": {"type": "object"}}], indent=2)


SCRIPTS: dict[str, Script] = {
    "short": lambda request: says(words(SHORT)),
    "long": lambda request: says(words(LONG)),
    "running": lambda request: [*says(words(SHORT))[:12], HOLD],
    "failed": lambda request: [*says(words(SHORT))[:6], GenerationFailed("out of memory: the KV cache is full")],
    "refused": lambda request: [GenerationFailed("out of memory: 3 blocks are free and 4 are needed")],
    "call": lambda request: says(words(CALL)),
}


def _empty(visit: ChatPage) -> None:
    visit.ready()


def _answered(visit: ChatPage) -> None:
    visit.ready().ask("What is the capital of France?")
    visit.answer()


def _running(visit: ChatPage) -> None:
    visit.ready().ask("What is the capital of France?")
    visit.page.locator(".assistant .t").nth(8).wait_for()


def _alternatives(visit: ChatPage) -> None:
    _answered(visit)
    visit.page.locator(".assistant .t.p1").first.click()
    visit.page.locator("#alternatives").wait_for()


def _settings(visit: ChatPage) -> None:
    _answered(visit)
    visit.settings()
    visit.page.locator("#schema").fill('{"type": "object"')
    visit.page.locator("#tools").fill(TOOLS)
    visit.page.locator("#temperature").fill("-1")
    visit.page.locator("#temperature").blur()
    visit.page.locator("#schema").scroll_into_view_if_needed()


def _figures(visit: ChatPage) -> None:
    _answered(visit)
    if not visit.page.locator("#panel").is_visible():
        visit.page.locator("#toggle-panel").click()
    visit.page.locator("#figures .value", has_text="0").first.wait_for()


def _call(visit: ChatPage) -> None:
    visit.ready().settings()
    visit.page.locator("#tools").fill(TOOLS)
    if visit.page.locator("#chat").evaluate("(chat) => chat.inert"):
        visit.page.locator("#toggle-panel").click()
    _answered(visit)


def _locked(visit: ChatPage) -> None:
    visit.page.locator("#key-dialog[open]").wait_for()


def _offline(visit: ChatPage) -> None:
    visit.ready()
    visit.page.route("**/*", lambda route: route.abort())
    visit.ask("Hello?")
    visit.page.locator("#notice:not([hidden])").wait_for()


STATES: dict[str, tuple[str, Callable[[ChatPage], None]]] = {
    "empty": ("short", _empty),
    "answer": ("short", _answered),
    "long": ("long", _answered),
    "running": ("running", _running),
    "failed": ("failed", _answered),
    "refused": ("refused", _answered),
    "alternatives": ("short", _alternatives),
    "settings": ("short", _settings),
    "figures": ("short", _figures),
    "call": ("call", _call),
    "locked": ("short", _locked),
    "offline": ("short", _offline),
}
"""The script of each state, and what is done to reach it."""


@contextmanager
def in_state(browser: Browser, state: str, scheme: Scheme, size: str) -> Iterator[ChatPage]:
    """The page in a state."""
    script, reach = STATES[state]
    key = {"api_key": "secret"} if state == "locked" else {}
    with scripted(SCRIPTS[script], adapters=("poet", "org/cook"), **key) as (served, _):
        visit = ChatPage(browser, str(served.client.base_url).rstrip("/"), scheme, *SIZES[size])
        with visit.context:
            reach(visit)
            yield visit


def main() -> None:
    """Take the pictures."""
    folder = Path(sys.argv[1])
    wanted = sys.argv[2:] or list(STATES)
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for state in wanted:
            for scheme in SCHEMES:
                for size in SIZES:
                    with in_state(browser, state, scheme, size) as visit:
                        visit.page.screenshot(path=str(folder / f"{state}-{size}-{scheme}.png"))


if __name__ == "__main__":
    main()
