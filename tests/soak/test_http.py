"""Soak B in its short form."""

from __future__ import annotations

from tests.soak.http import Holding, Report, faulty


def test_an_hour_in_small() -> None:
    """Clients that read, give up and err, over a backend that fails: every answer is one that clients know, and nothing grows."""
    report = faulty(rounds=3, requests=150)
    assert report.wrong(rss=False) == []
    assert report.requests == 450 and report.answers[200] > 150 and report.answers[424] and report.answers[422] and report.left


def test_growth_is_found() -> None:
    """A kilobyte kept of each request, a file or a series more: each is named."""
    holdings = [Holding(1000 * place, 10**8 + 1_024_000 * place, 10**8, 20, 8, 300) for place in range(12)]
    assert Report(holdings).wrong(rss=True) == ["the router's memory grows by 1024 bytes per request"]
    steady = [Holding(1000 * place, 10**8 + (place % 3) * 10**6, 10**8, 20, 8, 300) for place in range(12)]
    assert Report(steady).wrong(rss=True) == []
    steady[-1] = Holding(12000, 10**8, 10**8, 21, 9, 301)
    assert [text.split(":")[0] for text in Report(steady).wrong(rss=True)] == ["fds", "threads", "series"]
    assert Report(holdings[:1], {500: 2}).wrong(rss=False) == ["answer 500: 2 times"]
