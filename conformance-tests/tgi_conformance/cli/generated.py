"""`tgi-conformance generated`: mutants drawn at random, and how many of them the suite kills."""

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
    from tgi_conformance.proof.generated import Fate, Figures


@click.command("generated")
@click.option("--mutants", type=click.IntRange(1, 1_000_000), default=500, show_default=True, help="How many to draw in all.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=12,
    show_default=True,
    help="Over how many seeds; each also draws the scenarios.",
)
@click.option("--seed", type=click.IntRange(0), help="The first seed; drawn anew, and printed, if not given.")
@click.option(
    "--plays",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    help="Wide plays before one that differs in none counts as equivalent.",
)
@click.option("--limit", type=click.FloatRange(1), default=60.0, show_default=True, help="Seconds of CPU time for one mutant.")
@click.option("--whole", is_flag=True, help="Try every clause on every mutant, and report what only one clause kills.")
@click.option(
    "--least",
    type=click.FloatRange(0, 100),
    default=0.0,
    help="Exit status 1 below this kill rate, in per cent; and for a false alarm.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write every fate as .json; survivors can be run again by name.",
)
@click.option("--processes", type=click.IntRange(1), help="Processes at a time; as many as there are cores if not given.")
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
    """Draw mutants, an operator under a condition each, and try the suite on them. A survivor goes through wide random plays: one that
    never differs from the sound session is equivalent and counts for nothing. `tgi-conformance run --backend generated:SEED:NUMBER` runs
    one again."""
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


def _lines(fates: list[Fate], found: Figures, whole: bool) -> list[str]:
    from tgi_conformance.proof.generated import EQUIVALENT, KILLED, causes, only_by, wilson

    lines = [
        f"{fate.fate}: {fate.name}: {fate.cause}: {f'fired {fate.fired} times in the suite' if fate.fired else 'never fired in the suite'}"
        f"{'; inconclusive: ' + ', '.join(fate.stalled) if fate.stalled else ''}; {fate.difference}"
        for fate in fates
        if fate.fate not in (KILLED, EQUIVALENT)
    ]
    lines += [f"survives: {part}: {alive} of {count}" for part, alive, count in causes(fates)[:40]]
    if whole:
        lines += [f"only by {id}: {len(names)}" for id, names in only_by(fates).items()]
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
