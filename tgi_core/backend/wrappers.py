"""Hook wrappers around the session's verbs, outermost first: trace, metrics.

A wrapper costs about a microsecond per call, so wrappers run once per verb, never per token.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from typing import Any

from tgi_core.backend.errors import BackendError
from tgi_core.backend.spec import hookimpl
from tgi_core.backend.types import Grant, Handle, Request, Step

Observe = Callable[[str, float, str], None]
"""Called with a verb's name, its duration in seconds and the name of its error ("" on success)."""

Wrapped = Generator[None, Any, Any]
"""A pluggy hook wrapper: yields once, receives the result, returns it."""

_log = logging.getLogger("tgi_core.backend.trace")


class Trace:
    """Logs each verb with its counts at level DEBUG; almost free at higher levels."""

    @hookimpl(wrapper=True)
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Wrapped:
        """Log the number of new requests and the batch they join."""
        return (yield from _logged("prefill", requests=len(batch), cached=cached.id, grants=len(grants)))

    @hookimpl(wrapper=True)
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Wrapped:
        """Log the batches to continue."""
        return (yield from _logged("decode", batches=[handle.id for handle in batches], grants=len(grants)))

    @hookimpl(wrapper=True)
    def rows(self, step: Step) -> Wrapped:
        """Log the step that is read."""
        return (yield from _logged("rows", step=step.id))

    @hookimpl(wrapper=True)
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Wrapped:
        """Log the batch and how many rows it keeps."""
        return (yield from _logged("filter", batch=batch.id, keep=len(keep)))

    @hookimpl(wrapper=True)
    def clear(self, batch: Handle | None) -> Wrapped:
        """Log the batch, or "all"."""
        return (yield from _logged("clear", batch=batch.id if batch else "all"))


def _logged(verb: str, **counts: object) -> Wrapped:
    if not _log.isEnabledFor(logging.DEBUG):
        return (yield)
    start = time.perf_counter()
    try:
        result = yield
    except BackendError as error:
        _log.debug("%s %s failed: %r", verb, counts, error)
        raise
    _log.debug("%s %s: %.3f ms", verb, counts, 1e3 * (time.perf_counter() - start))
    return result


class Metrics:
    """Reports each verb's duration and outcome to an observer."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe

    @hookimpl(wrapper=True)
    def prefill(self) -> Wrapped:
        """Time launching a prefill."""
        return (yield from self._timed("prefill"))

    @hookimpl(wrapper=True)
    def decode(self) -> Wrapped:
        """Time launching a decode."""
        return (yield from self._timed("decode"))

    @hookimpl(wrapper=True)
    def rows(self) -> Wrapped:
        """Time waiting for a step."""
        return (yield from self._timed("rows"))

    @hookimpl(wrapper=True)
    def filter(self) -> Wrapped:
        """Time dropping rows."""
        return (yield from self._timed("filter"))

    def _timed(self, verb: str) -> Wrapped:
        start = time.perf_counter()
        error = ""
        try:
            return (yield)
        except BaseException as caught:
            error = type(caught).__name__
            raise
        finally:
            self._observe(verb, time.perf_counter() - start, error)
