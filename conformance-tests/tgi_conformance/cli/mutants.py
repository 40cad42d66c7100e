"""`tgi-conformance mutants`: the matrix of clauses and mutants, which proves that the suite finds defects."""

from __future__ import annotations

import sys
import time
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import click

from tgi_core.telemetry.progress import progress

FORMATS = (".html", ".json")


@click.command("mutants")
@click.option("--seeds", type=click.IntRange(1, 1000), default=12, show_default=True, help="Number of seeds.")
@click.option("--only", multiple=True, metavar="NAME", help="Run only this mutant or correct variant; may be repeated.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), multiple=True, help="Write the matrix as .html or .json.")
@click.option("--processes", type=click.IntRange(1), help="Number of processes; one per core if not given.")
def command(seeds: int, only: tuple[str, ...], out: tuple[Path, ...], processes: int | None) -> None:
    """Run every mutant against the clauses meant for it, and every correct variant against all clauses.

    Exit status 1 if a mutant survives, a clause kills no mutant, or a correct variant fails.
    """
    from tgi_conformance.mutants import EVERY, MUTANTS, TWINS
    from tgi_conformance.proof import rendering
    from tgi_conformance.proof.tally import tally
    from tgi_conformance.proof.trials import JUDGING, run_all, trials

    for name in only:
        if name not in EVERY:
            like = ", ".join(get_close_matches(name, EVERY))
            raise click.UsageError(f"--only {name}: no such mutant or twin{f'; did you mean one of: {like}?' if like else ''}")
    for path in out:
        if path.suffix not in FORMATS:
            raise click.UsageError(f"--out {path}: must end in {' or '.join(FORMATS)}")
    chosen = only or tuple(EVERY)
    begun = time.monotonic()
    planned = list(trials(chosen, seeds))
    with progress() as show:
        outcomes = run_all(planned, processes, partial(show, "trials", total=len(planned), unit=""))
    seconds = time.monotonic() - begun
    mutants = [name for name in MUTANTS if name in chosen]
    meant = {id for name in mutants for id in MUTANTS[name].killed_by}
    clauses = [clause.id for clause in JUDGING if not only or clause.id in meant]
    matrix = tally(outcomes, mutants, [name for name in TWINS if name in chosen], clauses)
    if sys.stdout.isatty():
        from rich.console import Console

        rendering.show(matrix, seeds, seconds, Console())
    else:
        for line in rendering.lines(matrix, seeds, seconds):
            click.echo(line)
    for path in out:
        form = rendering.as_html if path.suffix == ".html" else rendering.as_json
        _write(path, form(matrix, seeds, seconds))
    sys.exit(0 if matrix.proved else 1)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from error
