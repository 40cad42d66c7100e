"""Progress of slow work: a bar on a terminal, otherwise occasional lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from tgi_core.backend import Progress
from tgi_core.telemetry.logs import announce, lines_through

_LINE_EVERY_S = 2.0


def describe(what: str, done: int, total: int, unit: str, seconds: float) -> str:
    """Format progress and rate as one line."""
    share = 100 * done // total if total else 100
    if unit == "B":
        rate = done / seconds / 1e6 if seconds > 0 else 0.0
        return f"{what}: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB ({share} %), {rate:,.0f} MB/s"
    return f"{what}: {done} of {total} ({share} %)"


def both(first: Progress, second: Progress) -> Progress:
    """Show progress in two ways."""

    def show(what: str, done: int, total: int, unit: str) -> None:
        first(what, done, total, unit)
        second(what, done, total, unit)

    return show


class PlainProgress:
    """Prints a line every two seconds and at the end of each task."""

    def __init__(self) -> None:
        self._started: dict[str, float] = {}
        self._printed = 0.0

    def __call__(self, what: str, done: int, total: int, unit: str) -> None:
        """Print a line, unless the last one is too recent."""
        now = time.monotonic()
        start = self._started.setdefault(what, now)
        if done >= total or now - self._printed >= _LINE_EVERY_S:
            self._printed = now
            announce(describe(what, done, total, unit, now - start))


@contextmanager
def progress(show: Progress | None = None) -> Generator[Progress, None, None]:
    """Show progress while the block runs, through `show` if given."""
    if show is not None:
        yield show
        return
    if not sys.stderr.isatty():
        yield PlainProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn
    from rich.progress import Progress as Bars

    tasks: dict[str, tuple[TaskID, float]] = {}
    with Bars(BarColumn(), TextColumn("{task.description}"), console=Console(stderr=True)) as bars:

        def draw(what: str, done: int, total: int, unit: str) -> None:
            now = time.monotonic()
            if what not in tasks:
                tasks[what] = bars.add_task(what), now
            task, start = tasks[what]
            bars.update(task, completed=done, total=total, description=describe(what, done, total, unit, now - start))

        def write(line: str) -> None:
            """Print a line above the bar, without wrapping or markup."""
            bars.console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)

        with lines_through(write):
            yield draw
