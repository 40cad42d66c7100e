"""More requests than can be answered, for a moment each."""

from __future__ import annotations

import asyncio

from tests.soak.overload import course, serving, silent


def test_overload() -> None:
    """Every request is answered, in full or with 429 and the time to come back, and probes always; the server goes on answering at ten
    and a hundred times what it can, and to a crowd that tries again at once; a polite client gets in."""
    with serving() as server:
        parts = {part["part"]: part for part in asyncio.run(course(server, 2.0, crowd=100))}
    for name in ("10x", "100x", "crowd"):
        part = parts[name]
        assert part["lost"] == 0 and part["answered"] > 0 and part["statuses"].keys() <= {"200", "429"}, part
        assert part["health"] and set(part["statuses"]) <= {"200", "429"}
    assert parts["10x"]["statuses"]["429"] > parts["10x"]["statuses"]["200"]
    for name in ("flood", "flood high"):
        assert parts[name]["tries"] and min(parts[name]["tries"]) <= 2, parts[name]


def test_clients_that_read_nothing() -> None:
    """They hold every row, and others are answered all the same."""
    with serving(40, 4, 0.5) as server:
        assert len(asyncio.run(silent(server, 20))["waits"]) == 5
