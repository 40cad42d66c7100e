"""Ten thousand tokens on the page at /ui: written once per frame. `python -m bench.page` measures the frames."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.surface.chat_page import ChatPage, says, scripted, words
from tests.surface.chat_states import SHORT

TOKENS = 10_000
WATCH = """() => {
    const seen = window.seen = { frames: 0, commits: 0, mutated: false, most: 0 };
    const target = document.getElementById("messages");
    const tokens = (record) => [...record.addedNodes].filter((node) => node.className?.startsWith?.("t ")).length;
    new MutationObserver((records) => {  // is called once after each task or frame that changed the text
        const added = records.reduce((sum, record) => sum + tokens(record), 0);
        if (!added) return;
        seen.commits += 1;
        seen.most = Math.max(seen.most, added);
        if (seen.mutated) seen.twice = (seen.twice ?? 0) + 1;
        seen.mutated = true;
    }).observe(target, { childList: true, subtree: true });
    const frame = () => { seen.frames += 1; seen.mutated = false; requestAnimationFrame(frame); };
    requestAnimationFrame(frame);
}"""


@pytest.mark.parametrize("ending", [".\n", " "])
def test_ten_thousand_tokens(browser: Browser, ending: str) -> None:
    """All of them are there, in order; no frame writes twice, and no frame writes all of them, though they come at once."""
    sentence = words(SHORT)[:-1]
    texts = [*sentence, ending] * (TOKENS // (len(sentence) + 1))
    with scripted(lambda request: says(texts)) as (served, _):
        visit = ChatPage(browser, str(served.client.base_url).rstrip("/"))
        with visit.context:
            visit.ready().page.evaluate(WATCH)
            visit.ask("a long story")
            assert visit.text() == "".join(texts)
            assert visit.answer().locator(".text .t").count() == len(texts)
            seen = visit.page.evaluate("window.seen")
            assert "twice" not in seen and 1 < seen["commits"] <= seen["frames"] and seen["most"] < len(texts)
            at_end = "(view) => view.scrollHeight - view.scrollTop - view.clientHeight"
            assert visit.page.locator("#conversation").evaluate(at_end) < 2
            assert visit.complaints == []
