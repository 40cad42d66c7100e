"""Shows a run: with rich on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from tgi_conformance.clause import Clause
from tgi_conformance.replay import write_recording
from tgi_conformance.report.grading import exit_status
from tgi_conformance.result import Result
from tgi_conformance.verdict import Verdict

if TYPE_CHECKING:
    from rich.progress import Progress

_COLOURS = {
    Verdict.PASS: "green",
    Verdict.FAIL: "red",
    Verdict.KNOWN: "yellow",
    Verdict.UNSUPPORTED: "bright_black",
    Verdict.INCONCLUSIVE: "magenta",
    Verdict.ERROR: "red",
    Verdict.NOT_RUN: "bright_black",
}


def _counts(result: Result) -> bool:
    """Whether this verdict would block the level of a clause that is not provisional."""
    return result.verdict in (Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE)


class ConsoleReporter:
    """Prints plain lines: one per clause, and the details of each failure."""

    def __init__(self, backend: str, total: int, failures: Path) -> None:
        self._backend, self._total, self._failures = backend, total, failures
        self.failed: list[tuple[Clause, Result]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def starting(self, clause: Clause) -> None:
        """Print nothing yet."""

    def result(self, clause: Clause, result: Result) -> None:
        """Print a line, and details if the clause failed."""
        if result.verdict is Verdict.NOT_RUN:
            return
        self.say(self.line(clause, result))
        if _counts(result):
            self.failed.append((clause, result))
            self.say(self.explained(clause, result))

    def line(self, clause: Clause, result: Result) -> str:
        """Return the line with a clause's verdict."""
        text = click.style(f"{result.verdict.value:<12}", fg=_COLOURS[result.verdict], bold=result.verdict is Verdict.FAIL)
        figures = "".join(f"  {name} {value:.4g}" for name, value in result.figures.items())
        reason = f"  {result.message}" if result.verdict in (Verdict.UNSUPPORTED, Verdict.KNOWN) else ""
        blocks_nothing = "  (provisional: it does not count for the level)" if clause.provisional and _counts(result) else ""
        return f"{clause.level.value}  {text} {clause.id}{reason}{figures}{blocks_nothing}"

    def explained(self, clause: Clause, result: Result) -> str:
        """Return the clause's sentence, the shortest failing sequence, and the command that repeats it."""
        lines = ["", f"    {clause.sentence}", f"    {result.message}"]
        if result.sequence:
            lines += ["", *(f"      {step}" for step in result.sequence)]
        again = f"tgi-conformance run --backend {self._backend} --only {clause.id}"
        if result.failure:
            again = f"tgi-conformance replay {write_recording(self._failures, clause.id, result.failure)}"
        return "\n".join([*lines, "", f"    again: {again}", ""])

    def say(self, text: str) -> None:
        """Print to standard output."""
        click.echo(text)

    def end(self, document: dict[str, Any], level: str, partial: bool) -> int:
        """Print what was granted, and return the exit status."""
        counts = {verdict.value: sum(entry["verdict"] == verdict.value for entry in document["results"]) for verdict in Verdict}
        self.say("\n" + ", ".join(f"{count} {name}" for name, count in counts.items() if count) + f" in {document['seconds']} s")
        if partial:
            return 3 if counts["error"] else 1 if self.failed else 0
        for name, outcome in document["levels"].items():
            if name <= level:
                self.say(f"{name}  {click.style(outcome, fg='green' if outcome == 'granted' else 'red')}")
        if level >= "L2":
            self.say(
                f"text-core  {click.style(document['text_core'], fg='green' if document['text_core'] == 'granted' else 'red')}"
            )
        return exit_status(document["results"], level)


class LiveReporter(ConsoleReporter):
    """Also shows a progress bar and the name of the running clause."""

    def __init__(self, backend: str, total: int, failures: Path) -> None:
        super().__init__(backend, total, failures)
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(bar_width=28), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._bar: Progress = Progress(*columns, transient=True)
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def starting(self, clause: Clause) -> None:
        """Show the clause's id next to the bar."""
        self._bar.update(self._task, description=clause.id)

    def result(self, clause: Clause, result: Result) -> None:
        """Print the result above the bar."""
        super().result(clause, result)
        if result.verdict is not Verdict.NOT_RUN:
            self._bar.advance(self._task)

    def say(self, text: str) -> None:
        """Print above the bar, keeping the text's colours."""
        from rich.text import Text

        self._bar.console.print(Text.from_ansi(text), soft_wrap=True)


def make_reporter(backend: str, total: int, failures: Path) -> ConsoleReporter:
    """Return the reporter suited to standard output."""
    return LiveReporter(backend, total, failures) if sys.stdout.isatty() else ConsoleReporter(backend, total, failures)
