"""`tgi-conformance replay`: run a recorded failure again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tgi_conformance.replay import Recording
    from tgi_conformance.target import Target


@click.command("replay")
@click.argument("failures", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FAILURE...")
@click.option("--backend", help="A backend other than the one that failed.")
@click.option("--model", type=click.Path(path_type=Path), help="A model other than the suite's own.")
def command(failures: tuple[Path, ...], backend: str | None, model: Path | None) -> None:
    """Run recorded FAILUREs again, call by call. Exit status 0 if no rule is broken any more."""
    from tgi_conformance.replay import BadRecording, read_recording
    from tgi_conformance.subject import UnknownBackend, resolve

    recordings = []
    try:
        for failure in failures:
            recording = read_recording(failure)
            target = resolve(backend or recording.header["backend"], model, recording.header["dtype"]).target
            recordings.append((recording, target))
    except (BadRecording, UnknownBackend) as error:
        raise click.UsageError(str(error)) from error
    broken = [recording for recording, target in recordings if _again(recording, target)]
    if len(recordings) > 1:
        click.echo(f"\n{len(broken)} of {len(recordings)} failures are still there")
    sys.exit(1 if broken else 0)


def _again(recording: Recording, target: Target) -> int:
    click.echo(f"{recording.clause}: {recording.header.get('sentence', '')}\n")
    return _calls(recording, target) if recording.header.get("judged") else _whole_clause(recording, target)


def _calls(recording: Recording, target: Target) -> int:
    from tgi_conformance.replay import replay
    from tgi_conformance.verdict import Violation
    from tgi_core.backend import BackendError

    try:
        for line in replay(recording, target):
            click.echo(line)
    except (Violation, BackendError) as error:
        click.echo(f"\nFAIL {error}\n")
        return 1
    click.echo("\nEvery law is kept.\n")
    return 0


def _whole_clause(recording: Recording, target: Target) -> int:
    """A failure between calls rather than in one of them: its clause is run again."""
    from tgi_conformance.baseline import Alone
    from tgi_conformance.clause_run import run_clause
    from tgi_conformance.clauses import CLAUSES
    from tgi_conformance.verdict import Verdict

    clause = next((item for item in CLAUSES if item.id == recording.clause), None)
    if clause is None:
        raise click.UsageError(f"this suite has no clause {recording.clause}")
    alone = Alone(target)
    try:
        result = run_clause(clause, target, alone, recording.header["seed"], recording.header["effort"])
    finally:
        alone.close()
    for line in result.sequence:
        click.echo(line)
    click.echo(f"\n{result.verdict.value.upper()} {result.message}\n")
    return 0 if result.verdict is Verdict.PASS else 1
