"""Shorten a failing sequence: leave out calls as long as the same law is still broken.

Any sequence can be judged, since the oracle predicts every call anew; calls that the core itself may not make are left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from tgi_conformance.baseline import Alone
from tgi_conformance.calls import Call, Read, Ref, Trace, moved, references, renumbered
from tgi_conformance.session_driver import SessionDriver
from tgi_conformance.session_setup import Setup
from tgi_conformance.target import Target
from tgi_conformance.verdict import Violation
from tgi_core.backend import BackendError

TIME_LIMIT_S = 10.0


def shortest(
    target: Target, setup: Setup, alone: Alone, trace: Trace, violation: Violation, time_limit_s: float = TIME_LIMIT_S
) -> tuple[Trace, str]:
    """Return the shortened trace and the message of its violation."""
    end = time.monotonic() + time_limit_s
    best, message = list(trace), str(violation)
    size = max(1, len(best) // 2)
    while size:
        index, shorter = 0, False
        while index < len(best) and time.monotonic() < end:
            candidate = without(best, range(index, index + size))
            found = replayed(target, setup, alone, candidate)
            if found is not None and found[1].law == violation.law:
                best, message, shorter = found[0], str(found[1]), True
            else:
                index += size
        if time.monotonic() >= end:
            break
        size = size if shorter and size == 1 else size // 2
    again = replayed(target, setup, alone, renumbered(best))
    return (again[0], str(again[1])) if again is not None and again[1].law == violation.law else (best, message)


def without(trace: Trace, dropped: range) -> Trace:
    """Return the trace without the calls at these places.

    A call that took the result of a dropped step or filter takes the batch that the dropped call took.
    """
    gone: dict[Ref, Ref] = {}
    kept: Trace = []
    for place, (number, call) in enumerate(trace):
        before = references(call)
        if place not in dropped:
            kept.append((number, rerouted(call, gone)))
        elif before and not isinstance(call, Read):
            gone[number] = gone.get(before[0], before[0])
    return kept


def rerouted(call: Call, gone: Mapping[Ref, Ref]) -> Call:
    """Replace the batches a call takes. A Read keeps its step, and means nothing once that is gone."""
    return call if isinstance(call, Read) else moved(call, lambda ref: gone.get(ref, ref))


def replayed(target: Target, setup: Setup, alone: Alone, trace: Trace) -> tuple[Trace, Violation] | None:
    """Run calls on a fresh session. Return those up to the first violation, and the violation; None if there is none."""
    try:
        play = SessionDriver.open(target, setup, alone)
    except BackendError:
        return None
    try:
        for number, call in trace:
            if play.possible(call):
                play.call(call, number)
        play.leave()
    except Violation as violation:
        return play.trace, violation
    finally:
        play.drop()
    return None
