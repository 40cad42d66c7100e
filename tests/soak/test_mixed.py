"""Soak C in its short form."""

from __future__ import annotations

from tests.soak.mixed import mixed


def test_an_hour_in_small() -> None:
    """Every manner of asking at once: all answers are right or refused, and nothing is left behind."""
    report = mixed(rounds=3, requests=60)
    assert report.wrong(rss=False) == [] and report.requests == 180
    assert report.answers[200] > 90 and report.answers[422] and report.left and set(report.answers) == {200, 422}
