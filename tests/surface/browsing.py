"""Chromium without a window, and pages in it that tell what they complain of and whom they call."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from playwright.sync_api import Browser, ConsoleMessage, ViewportSize, sync_playwright

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")

SECONDS = 60
"""How long is waited for what should come: so long takes only what hangs, on a busy machine too."""

Scheme = Literal["light", "dark"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; the test is skipped where there is none."""
    if PROGRAM is None:
        pytest.skip("no Chromium here")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page in a window of its own, what its scripts complained of, and whom it called."""

    def __init__(self, browser: Browser, address: str, scheme: Scheme, width: int, height: int = 844) -> None:
        phone = width < 500
        size: ViewportSize = {"width": width, "height": height}
        self.context = browser.new_context(color_scheme=scheme, viewport=size, is_mobile=phone, has_touch=phone)
        self.page = self.context.new_page()
        self.page.set_default_timeout(1000 * SECONDS)
        self.complaints: list[str] = []
        self.called: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.called.append(request.url))
        self.page.goto(address)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def check_calls(self, url: str) -> None:
        """Nothing broke the page's own policy, and nobody but the server was called."""
        assert self.complaints == []
        assert self.called and all(each.startswith((url, "data:")) for each in self.called)
