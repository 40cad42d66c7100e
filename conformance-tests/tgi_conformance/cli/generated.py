"""`tgi-conformance generated`: randomly generated mutants, and how many of them the suite kills."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tgi_core.telemetry.progress import progress

if TYPE_CHECKING:
    from tgi_conformance.proof.generated import Figures, MutantOutcome


@click.command("generated")
@click.option("--mutants", type=click.IntRange(1, 1_000_000), default=500, show_default=True, help="Number of mutants in all.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=12,
    show_default=True,
    help="Number of seeds to spread them over; each also seeds the scenarios.",
)
@click.option("--seed", type=click.IntRange(0), help="The first seed; random and printed if not given.")
@click.option(
    "--plays",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    help="Random call sequences without a difference after which a mutant counts as equivalent.",
)
@click.option("--limit", type=click.FloatRange(1), default=60.0, show_default=True, help="Seconds of CPU time per mutant.")
@click.option("--whole", is_flag=True, help="Run every clause on every mutant, and report mutants that only one clause kills.")
@click.option(
    "--least",
    type=click.FloatRange(0, 100),
    default=0.0,
    help="Exit with status 1 if the kill rate is below this percentage; a false alarm always fails.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write every mutant's outcome as JSON; survivors can be run again by name.",
)
@click.option("--processes", type=click.IntRange(1), help="Number of processes; one per core if not given.")
def command(
    mutants: int,
    seeds: int,
    seed: int | None,
    plays: int,
    limit: float,
    whole: bool,
    least: float,
    out: Path | None,
    processes: int | None,
) -> None:
    """Generate random mutants, each a fault applied under a condition, and run the suite on them.

    A surviving mutant is run on long random call sequences; if it never differs from the correct session, it counts as equivalent
    and is left out.
    `tgi-conformance run --backend generated:SEED:NUMBER` runs one again.
    """
    from tgi_conformance.proof import generated

    first = secrets.randbelow(1_000_000) if seed is None else seed
    places = [(first + index % seeds, index // seeds) for index in range(mutants)]
    begun = time.monotonic()
    effort = generated.Effort(plays, limit, whole)
    with progress() as show:
        heard = partial(show, "mutants", total=mutants, unit="")
        fates = generated.follow_all(places, effort, processes or len(os.sched_getaffinity(0)), heard)
    found = generated.figures(fates)
    for line in _lines(fates, found, whole):
        click.echo(line)
    click.echo(f"seeds {first}…{first + seeds - 1}, {plays} plays, {time.monotonic() - begun:.0f} s")
    if out is not None:
        value = asdict(found) | {"seed": first, "seeds": seeds, "plays": plays, "fates": [asdict(fate) for fate in fates]}
        try:
            out.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise click.UsageError(f"--out {out}: {error.strerror}") from error
    sys.exit(1 if found.alarms or 100 * found.rate < least else 0)


def _lines(fates: list[MutantOutcome], found: Figures, whole: bool) -> list[str]:
    from tgi_conformance.proof.generated import EQUIVALENT, KILLED, causes, only_by, wilson

    lines = [
        f"{fate.fate}: {fate.name}: {fate.cause}: {f'fired {fate.fired} times in the suite' if fate.fired else 'never fired in the suite'}"
        f"{'; inconclusive: ' + ', '.join(fate.stalled) if fate.stalled else ''}; {fate.difference}"
        for fate in fates
        if fate.fate not in (KILLED, EQUIVALENT)
    ]
    lines += [f"survives: {part}: {alive} of {count}" for part, alive, count in causes(fates)[:40]]
    if whole:
        lines += [f"killed only by {id}: {len(names)}" for id, names in only_by(fates).items()]
    low, high = wilson(found.killed, found.judged)
    named_low, named_high = wilson(found.named, found.killed)
    share = found.named / found.killed if found.killed else 0.0
    lines.append(
        f"{found.tried} mutants, {found.equivalent} equivalent, {found.late} out of time, {found.alarms} false alarms; "
        f"{found.killed} of {found.judged} killed: "
        f"{found.rate:.1%} ({low:.1%}…{high:.1%}); {found.named} by clauses that name the cause: "
        f"{share:.1%} ({named_low:.1%}…{named_high:.1%})"
    )
    return lines
