"""A log of the running clause's calls, from which the parent reports a child that hangs or crashes."""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tgi_core.backend import Capabilities, Capacity, Closed, hookimpl

_T = TypeVar("_T")
_ASIDE, _DONE = "~", "."
"""As a line's prefix: a call outside of any scenario, such as `close`. As a line: the previous call has returned."""


class Journal:
    """Writes calls as they are made. Without a file it does nothing."""

    def __init__(self, path: str | None = None) -> None:
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND)

    def __bool__(self) -> bool:
        return self._file is not None

    def restart(self) -> None:
        """Record that a scenario begins, with its own session."""
        if self._file is not None:
            os.ftruncate(self._file, 0)

    def calling(self, sentence: str) -> None:
        """Record that the scenario makes a call."""
        self._write(sentence)

    def calling_aside(self, what: str) -> None:
        """Record another call, which matters only if it does not return."""
        self._write(_ASIDE + what)

    def returned(self) -> None:
        """Record that the last call has returned, or raised."""
        self._write(_DONE)

    def _write(self, line: str) -> None:
        if self._file is not None:
            os.write(self._file, (line + "\n").encode())


class NotedCalls:
    """Hook wrappers that record a session's calls that are not verbs of a scenario."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @hookimpl(wrapper=True)
    def capabilities(self) -> Generator[None, Capabilities, Capabilities]:
        """Before and after."""
        return (yield from self._noted("capabilities"))

    @hookimpl(wrapper=True)
    def warmup(self) -> Generator[None, Capacity, Capacity]:
        """Before and after."""
        return (yield from self._noted("warmup"))

    @hookimpl(wrapper=True)
    def close(self) -> Generator[None, Closed, Closed]:
        """Before and after."""
        return (yield from self._noted("close"))

    def _noted(self, hook: str) -> Generator[None, _T, _T]:
        self._journal.calling_aside(hook)
        try:
            return (yield)
        finally:
            self._journal.returned()


@dataclass(frozen=True, slots=True)
class Calls:
    """The contents of a journal. `sequence` are the scenario's calls; `open` is the one that has not returned, "" if none is under way."""

    sequence: tuple[str, ...] = ()
    open: str = ""


def read_journal(path: Path) -> Calls:
    """Of a child that has ended."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    under_way = lines[-1].removeprefix(_ASIDE) if lines and lines[-1] != _DONE else ""
    return Calls(tuple(line for line in lines if line != _DONE and not line.startswith(_ASIDE)), under_way)
