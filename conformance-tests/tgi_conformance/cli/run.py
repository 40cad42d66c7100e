"""`tgi-conformance run`: run the clauses on a backend, print their results, and write reports."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tgi_conformance.cli.list import LEVELS

if TYPE_CHECKING:
    from tgi_conformance.clause import Clause
    from tgi_conformance.known import KnownFailure
    from tgi_conformance.subject import Subject


@click.command("run")
@click.option("--backend", required=True, help="The backend's entry-point name.")
@click.option("--level", type=LEVELS, default="L4", show_default=True, help="The highest level to run.")
@click.option(
    "--model", type=click.Path(path_type=Path), help="A model directory for L1 to L3; the suite's own tiny model if not given."
)
@click.option(
    "--dtype", default="float32", show_default=True, help="The model's dtype; identical tokens are required in float32 only."
)
@click.option("--only", multiple=True, metavar="ID", help="Run only this clause or topic; may be repeated.")
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Write the report as JSON.")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write the report as JUnit XML.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write the report as an HTML page.")
@click.option("--badge", type=click.Path(path_type=Path, dir_okay=False), help="Write the highest granted level as an SVG.")
@click.option(
    "--known",
    "known_file",
    type=click.Path(path_type=Path),
    help="A file of known failures; ./conformance.toml by default, if it exists.",
)
@click.option(
    "--failures",
    type=click.Path(path_type=Path, file_okay=False),
    default="conformance-failures",
    show_default=True,
    help="Folder for recorded failures.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Random seed.")
@click.option(
    "--effort",
    type=click.FloatRange(0.1, 100),
    default=1.0,
    show_default=True,
    help="Scale factor for the number of randomized trials.",
)
@click.option(
    "--time-limit", type=click.FloatRange(1), default=300.0, show_default=True, help="Time limit of one clause in seconds."
)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="How many clauses to run at a time, each with sessions of its own on the same device.",
)
@click.option("--keep-going", is_flag=True, help="Run higher levels even if a lower one failed.")
def command(
    backend: str,
    level: str,
    model: Path | None,
    dtype: str,
    only: tuple[str, ...],
    report: Path | None,
    junit: Path | None,
    html: Path | None,
    badge: Path | None,
    known_file: Path | None,
    failures: Path,
    seed: int,
    effort: float,
    time_limit: float,
    processes: int,
    keep_going: bool,
) -> None:
    """Run the clauses on a backend. Exit status 0 if the level is granted, or with --only if nothing failed."""
    from tgi_conformance.clauses import CLAUSES
    from tgi_conformance.cli.console import make_reporter
    from tgi_conformance.report import document
    from tgi_conformance.running import Plan, perform
    from tgi_conformance.worker import Settings

    subject = _subject(backend, model, dtype)
    known = _known(known_file)
    settings = Settings(backend, str(model) if model else None, dtype, seed, effort)
    plan = Plan(settings, time_limit, keep_going, _wanted(level.upper(), only), known, datetime.date.today(), processes)
    begun = time.monotonic()
    reporter = make_reporter(subject.target.name, sum(map(plan.wanted, CLAUSES)), failures)
    with reporter:
        results, probe = perform(plan, subject, reporter)
    name = model.name if model else f"tiny {subject.target.model.name}"
    run = document.Run(subject, probe.devices, probe.verified_on_hardware, name, seed, effort, time.monotonic() - begun)
    made = document.make(run, results)
    _write(made, report, junit, html, badge)
    sys.exit(reporter.end(made, level.upper(), bool(only)))


def _subject(backend: str, model: Path | None, dtype: str) -> Subject:
    from tgi_conformance.subject import UnknownBackend, resolve

    try:
        return resolve(backend, model, dtype)
    except UnknownBackend as error:
        raise click.UsageError(str(error)) from error


def _known(path: Path | None) -> dict[str, KnownFailure]:
    from tgi_conformance.clauses import CLAUSES
    from tgi_conformance.known import FILE, InvalidKnownFailures, read_known

    if path is None and not Path(FILE).exists():
        return {}
    try:
        return read_known(path or Path(FILE), {clause.id for clause in CLAUSES})
    except InvalidKnownFailures as error:
        raise click.UsageError(str(error)) from error


def _wanted(level: str, only: tuple[str, ...]) -> Callable[[Clause], bool]:
    from tgi_conformance.clauses import CLAUSES

    for name in only:
        if not any(name in (clause.id, clause.topic) for clause in CLAUSES):
            raise click.UsageError(f"--only {name}: there is no such clause or topic; see tgi-conformance list")
    return lambda clause: clause.level.value <= level and (not only or clause.id in only or clause.topic in only)


def _write(made: dict[str, object], report: Path | None, junit: Path | None, html: Path | None, badge: Path | None) -> None:
    from tgi_conformance.report import document

    try:
        if report is not None:
            report.write_text(document.written(made), encoding="utf-8")
        if junit is not None:
            from tgi_conformance.report.junit import junit as as_junit

            junit.write_text(as_junit(made), encoding="utf-8")
        if html is not None:
            from tgi_conformance.report.page import page

            html.write_text(page(made), encoding="utf-8")
        if badge is not None:
            from tgi_conformance.report.badge import badge as as_badge

            badge.write_text(as_badge(made), encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from error
