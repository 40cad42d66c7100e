"""Our histograms are the Prometheus library's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from tgi_router.exposition import expose

from tgi_core.telemetry.histogram import FastHistogram

BOUNDS = (0.5, 1.0, 2.5)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 4))))
def test_exposed_alike(observed: list[tuple[str, float]]) -> None:
    """Whatever is observed, with a label or without, the scrape reads the same."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    plain, labelled = FastHistogram("x", "X.", BOUNDS), FastHistogram("y", "Y.", BOUNDS, "kind", ("a", "b"))
    ours.register(plain)
    ours.register(labelled)
    known = Histogram("x", "X.", buckets=BOUNDS, registry=theirs)
    known_labelled = Histogram("y", "Y.", ["kind"], buckets=BOUNDS, registry=theirs)
    for kind in "ab":
        known_labelled.labels(kind)
    for kind, value in observed:
        for one in (plain, known, labelled.labels(kind), known_labelled.labels(kind)):
            one.observe(value)
    assert expose(ours) == expose(theirs)
