"""Modules of the page at /ui that parse what the server sends, in the browser that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.surface.chat_page import ChatPage, says, scripted


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """The page, which its modules can be imported on."""
    with scripted(lambda request: says(["hi"])) as (served, _):
        visit = ChatPage(browser, str(served.client.base_url).rstrip("/"))
        with visit.context:
            yield visit.ready().page


STREAM = (
    'data: {"a":1}\r\n\r\ndata:x\ndata: y\n\n: comment\nid: 3\nretry: 5\r\revent: z\rdata: é\u2028[DONE]\n\ndata: not complete'
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_in_pieces(page: Page, size: int) -> None:
    """Events are found with every kind of line ending, wherever the pieces are cut."""
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    script = """async (pieces) => {
        const { EventParser } = await import("/ui/sse.js");
        const parser = new EventParser();
        return pieces.flatMap((piece) => parser.push(piece));
    }"""
    assert page.evaluate(script, pieces) == ['{"a":1}', "x\ny", "é\u2028[DONE]"]


FROM = """# HELP q is "a gauge"
q{shard="0"} 3
q{shard="1"} 4
other 9
h_bucket{le="0.1"} 1
h_bucket{le="1.0"} 1
h_bucket{le="+Inf"} 1
"""
TO = """q 17
h_bucket{adapter="a,le=\\"5\\"",le="0.1"} 3
h_bucket{adapter="a,le=\\"5\\"",le="1.0"} 5
h_bucket{adapter="a,le=\\"5\\"",le="+Inf"} 5
"""


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ('from.value("q")', 7),
        ('from.value("other")', None),
        ('rate("q", from, to)', 5),
        ('rate("q", to, new Reading("q 1", names, 9))', None),  # the server has started again
        ('rate("q", to, to)', None),
        ('quantile("h", 0.5, from, to)', 0.1),
        ('quantile("h", 0.75, from, to)', 0.55),
        ('quantile("h", 0.5, to, to)', None),
    ],
)
def test_metrics(page: Page, asked: str, expected: Any) -> None:
    """Series are summed over their labels; rates and quantiles are those between two readings."""
    script = f"""async ([first, second]) => {{
        const {{ Reading, rate, quantile }} = await import("/ui/metrics.js");
        const names = new Set(["q", "h"]);
        const [from, to] = [new Reading(first, names, 1), new Reading(second, names, 3)];
        return {asked};
    }}"""
    found = page.evaluate(script, [FROM, TO])
    assert found == (expected if expected is None else pytest.approx(expected))
