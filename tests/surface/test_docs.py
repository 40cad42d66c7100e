"""The OpenAPI document's examples on the demo model, and the page for people in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser

from tests.serve.process import served
from tests.surface.browsing import Scheme, Visit

DOCUMENT = json.loads((Path(__file__).parents[2] / "docs/openapi.json").read_text())


EXAMPLES: dict[str, dict[str, Any]] = {
    path: operations["post"]["requestBody"]["content"]["application/json"]["examples"]
    for path, operations in DOCUMENT["paths"].items()
    if "post" in operations
}


ENDINGS = {
    "/v1/messages": r"\n\nevent: message_stop\ndata: .*\n\n$",
    "/v1/responses": r"\n\nevent: response\.(completed|incomplete)\ndata: .*\n\n$",
}
"""How streams of named events end."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with the demo model."""
    with served("--backend", "cpu") as server:
        yield server.url


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, examples in EXAMPLES.items() for name in examples])
def test_examples_are_answered(url: str, path: str, name: str) -> None:
    """Every example of a body is answered by the demo model, a stream to its end."""
    body = EXAMPLES[path][name]["value"]
    answer = httpx.post(url + path.format(model="demo", version="1"), json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    streamed = path == "/generate_stream" or body.get("stream", False)
    assert answer.headers["content-type"].startswith("text/event-stream" if streamed else "application/json")
    assert "error" not in answer.text.replace('"error":null', "")
    if streamed and path.startswith("/v1"):
        assert re.search(ENDINGS.get(path, r"\n\ndata: \[DONE\]\n\n$"), answer.text)


class DocsVisit(Visit):
    """The page of the API documentation."""

    def __init__(self, browser: Browser, address: str, scheme: Scheme, width: int) -> None:
        super().__init__(browser, address, scheme, width)
        self.page.wait_for_selector(".opblock")

    def brightness(self, selector: str, what: str) -> float:
        """Of a colour that is seen, 0 to 255; a ground that is transparent is white, as a page's is by default."""
        script = f"getComputedStyle(document.querySelector('{selector}')).{what}.match(/[\\d.]+/g).map(Number)"
        red, green, blue, *alpha = self.page.evaluate(script)
        return 255.0 if alpha == [0] else 0.299 * red + 0.587 * green + 0.114 * blue

    def check(self, url: str, dark: bool) -> None:
        """Nobody was called but the server, and text stands out from the ground it is on."""
        self.check_calls(url)
        assert self.page.evaluate("document.documentElement.classList.contains('dark-mode')") == dark
        text, ground = self.brightness(".opblock-tag", "color"), self.brightness("html", "backgroundColor")
        assert (text > ground + 100) if dark else (ground > text + 100)


def test_page_on_a_phone(url: str, browser: Browser) -> None:
    """In light: every operation is shown, and nothing is wider than the screen."""
    visit = DocsVisit(browser, url + "/docs/", "light", width=390)
    with visit.context:
        assert visit.page.locator(".opblock").count() == sum(len(operations) for operations in DOCUMENT["paths"].values())
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
        visit.check(url, dark=False)


def test_try_it_out(url: str, browser: Browser) -> None:
    """In dark: an operation can be tried from the page. Its first example is sent as it is, and the answer is shown."""
    visit = DocsVisit(browser, url + "/docs", "dark", width=1280)
    with visit.context:
        operation = visit.page.locator("#operations-TGI-post_generate")
        operation.locator(".opblock-summary-control").click()
        with visit.page.expect_request(url + "/generate") as sent:
            operation.locator(".execute").click()
        assert json.loads(sent.value.post_data or "") == next(iter(EXAMPLES["/generate"].values()))["value"]
        assert not {"x-request-priority", "x-request-timeout", "x-cache-salt"} & set(sent.value.headers)
        answer = operation.locator(".live-responses-table .response-col_description .microlight").first
        answer.wait_for(timeout=60_000)
        assert operation.locator(".live-responses-table .response-col_status").last.inner_text().startswith("200")
        assert list(json.loads(answer.inner_text())) == ["generated_text"]
        visit.check(url, dark=True)
