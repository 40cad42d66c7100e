"""The soak of broken HTTP in its short form."""

from __future__ import annotations

from tests.soak.mutants import Report, soak


def test_a_few_mutants() -> None:
    """Whatever bytes come, the process stays as it was, and nothing is its fault."""
    report = soak(mutants=250, seed=2, warm_up=100)
    assert report.wrong() == [] and report.answers[200] > 25 and report.answers[400] > 25, report


def test_what_is_wrong_is_told() -> None:
    """An end, an error, memory and series are each named."""
    report = Report(faults=["500 for b'x'"], exited=True, rss_grown=51_000_000, series_new={"x"})
    assert report.wrong() == ["500 for b'x'", "the server has ended", "memory grew by 51 MB", "new series: ['x']"]
