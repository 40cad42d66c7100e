"""What is shown while a benchmark runs: a dashboard on a terminal, else a line now and then, on standard error."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from tgi_core.benchmark.batches import Row
from tgi_core.benchmark.generator import Progress
from tgi_core.benchmark.result import BATCH_COLUMNS, batch_row, number, sizes
from tgi_core.telemetry.logs import announce

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_BARS = "▁▂▃▄▅▆▇█"
_HISTORY = 60
_LINE_EVERY_S = 5.0


class Dashboard(Protocol):
    """Shows what a benchmark has done so far."""

    def load(self, progress: Progress) -> None:
        """How far a load is."""

    def batches(self, rows: Sequence[Row]) -> None:
        """The rows measured so far, the latest last."""


@contextmanager
def dashboard(title: str, requests: int = 0) -> Generator[Dashboard, None, None]:
    """The dashboard of a run with so many requests, while the block runs."""
    if not sys.stderr.isatty():
        yield PlainLines(requests)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=8, transient=True) as live:
        yield TerminalDashboard(live, title, requests)


class PlainLines:
    """Lines for logs."""

    def __init__(self, requests: int) -> None:
        self._requests, self._told = requests, 0.0

    def load(self, progress: Progress) -> None:
        """See `Dashboard.load`."""
        if progress.seconds - self._told >= _LINE_EVERY_S:
            self._told = progress.seconds
            rate = progress.events / progress.seconds
            first = "-" if progress.first_s is None else f"{number(1e3 * progress.first_s)} ms"
            announce(
                f"{progress.seconds:.0f} s: {progress.sent} of {self._requests} requests sent, {progress.answered} answered, "
                f"{number(rate)} events/s, first token after {first}"
            )

    def batches(self, rows: Sequence[Row]) -> None:
        """See `Dashboard.batches`."""
        row = rows[-1]
        what = "warm-up" if row["round"] < 0 else f"round {row['round'] + 1}"
        announce(f"{what}, batch {row['batch']}: {number(row['prefill'])} prefill and {number(row['decode'])} decode tokens/s")


class TerminalDashboard:
    """A panel that is drawn anew as figures come."""

    def __init__(self, live: Live, title: str, requests: int) -> None:
        self._live, self._title, self._requests = live, title, requests
        self._rates: deque[float] = deque(maxlen=_HISTORY)
        self._last = (0.0, 0)

    def load(self, progress: Progress) -> None:
        """See `Dashboard.load`."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        before, events = self._last
        if progress.seconds > before:
            self._rates.append((progress.events - events) / (progress.seconds - before))
        self._last = progress.seconds, progress.events
        grid = Table.grid(padding=(0, 3))
        first = "-" if progress.first_s is None else f"{number(1e3 * progress.first_s)} ms"
        running = progress.sent - progress.answered
        for name, value in (
            ("time", f"{progress.seconds:.1f} s"),
            ("requests", f"{progress.answered:,} answered, {running:,} running, {self._requests - progress.sent:,} to come"),
            ("events/s", f"{number(self._rates[-1] if self._rates else 0.0)}  {sparkline(self._rates)}"),
            ("first token, recent p50", first),
        ):
            grid.add_row(name, value)
        self._draw(Group(ProgressBar(total=max(1, self._requests), completed=progress.answered), grid))

    def batches(self, rows: Sequence[Row]) -> None:
        """See `Dashboard.batches`."""
        from rich.table import Table

        counted = [row for row in rows if row["round"] >= 0]
        table = Table("batch", *BATCH_COLUMNS.values(), caption="warming up" if not counted else f"round {rows[-1]['round'] + 1}")
        for size in sizes(counted):
            table.add_row(*batch_row(counted, size))
        self._draw(table)

    def _draw(self, what: RenderableType) -> None:
        from rich.panel import Panel

        self._live.update(Panel(what, title=self._title))


def sparkline(values: Sequence[float] | deque[float]) -> str:
    """Bars from nothing to the greatest value."""
    most = max(values, default=0.0)
    return "".join(_BARS[int(value / most * (len(_BARS) - 1))] for value in values) if most > 0 else ""
