"""Takes the pictures of docs/ui.md in headless Chromium, on the demo model with other requests running: `python -m scripts.ui_pictures`."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
from playwright.sync_api import Browser

from tests.serve.process import served
from tests.surface.browsing import chromium
from tests.surface.chat_page import ChatPage

DOCS = Path(__file__).resolve().parents[1] / "docs"
_SECONDS = 20
"""How long the figures are watched."""
_QUESTION = "Tell me a story about the sea."


def _load(url: str, ended: threading.Event) -> None:
    """Keep two requests running."""
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 100, "do_sample": True}}
    while not ended.is_set():
        httpx.post(f"{url}/generate", json=body, timeout=60)


def _laptop(browser: Browser, url: str) -> None:
    visit = ChatPage(browser, url, "light", 1280, 800)
    with visit.context:
        visit.ready().page.wait_for_timeout(1000 * _SECONDS)
        for field, value in (("max_tokens", "90"), ("seed", "3")):
            visit.page.locator(f"#{field}").fill(value)
        visit.page.locator("#panel").evaluate("(panel) => panel.scrollTo(0, 0)")
        visit.ask(_QUESTION)
        visit.answer()
        visit.page.screenshot(path=str(DOCS / "ui-laptop.png"))


def _phone(browser: Browser, url: str) -> None:
    visit = ChatPage(browser, url, "dark", 390, 700)
    with visit.context:
        visit.ready().settings()
        for field, value in (("max_tokens", "60"), ("seed", "3")):
            visit.page.locator(f"#{field}").fill(value)
        visit.page.locator("#toggle-panel").click()
        visit.ask(_QUESTION)
        visit.answer().locator(".t.p1, .t.p0").first.click()
        visit.page.locator("#alternatives").wait_for()
        visit.page.screenshot(path=str(DOCS / "ui-phone.png"))


def main() -> None:
    """Take the pictures."""
    ended = threading.Event()
    with served("--backend", "cpu") as server, chromium() as browser:
        others = [threading.Thread(target=_load, args=(server.url, ended)) for _ in range(2)]
        for each in others:
            each.start()
        try:
            _laptop(browser, server.url)
            _phone(browser, server.url)
        finally:
            ended.set()
            for each in others:
                each.join()


if __name__ == "__main__":
    main()
