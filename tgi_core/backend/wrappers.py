"""Hook wrappers around the session's verbs, outer to inner: trace, metrics.

A wrapper costs about a microsecond per verb, so wrappers go around verbs, once per step, and never around tokens.
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
"""Called with a verb's name, its seconds and the name of its error ("" when it succeeded)."""

Wrapped = Generator[None, Any, Any]
"""What pluggy takes for a hook wrapper: yields once, gets the result, returns it."""

_log = logging.getLogger("tgi_core.backend.trace")


class Trace:
    """Logs each verb with its counts, at level DEBUG; silent and almost free above that."""

    @hookimpl(wrapper=True)
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Wrapped:
        """New requests, and the batch they join."""
        return (yield from _logged("prefill", requests=len(batch), cached=cached.id, grants=len(grants)))

    @hookimpl(wrapper=True)
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Wrapped:
        """Batches to go on with."""
        return (yield from _logged("decode", batches=[handle.id for handle in batches], grants=len(grants)))

    @hookimpl(wrapper=True)
    def rows(self, step: Step) -> Wrapped:
        """The step that is waited for."""
        return (yield from _logged("rows", step=step.id))

    @hookimpl(wrapper=True)
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Wrapped:
        """The batch and how many rows it keeps."""
        return (yield from _logged("filter", batch=batch.id, keep=len(keep)))

    @hookimpl(wrapper=True)
    def clear(self, batch: Handle | None) -> Wrapped:
        """The batch, or all."""
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
        """Launching a prefill."""
        return (yield from self._timed("prefill"))

    @hookimpl(wrapper=True)
    def decode(self) -> Wrapped:
        """Launching a decode."""
        return (yield from self._timed("decode"))

    @hookimpl(wrapper=True)
    def rows(self) -> Wrapped:
        """Waiting for a step."""
        return (yield from self._timed("rows"))

    @hookimpl(wrapper=True)
    def filter(self) -> Wrapped:
        """Dropping rows."""
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
