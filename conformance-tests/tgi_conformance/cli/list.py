"""`tgi-conformance list`: list the clauses."""

from __future__ import annotations

import json

import click

LEVELS = click.Choice(["L0", "L1", "L2", "L3", "L4"], case_sensitive=False)


@click.command("list")
@click.option("--level", type=LEVELS, help="Only the clauses of this level.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
def command(level: str | None, as_json: bool) -> None:
    """List the clauses: id, level, required features, and the rule."""
    from tgi_conformance.clauses import CLAUSES

    for clause in CLAUSES:
        if level is not None and clause.level.value != level.upper():
            continue
        if as_json:
            value = {"id": clause.id, "level": clause.level.value, "needs": clause.needs, "sentence": clause.sentence}
            click.echo(
                json.dumps(value | {"provisional": clause.provisional, "situations": clause.situations}, ensure_ascii=False)
            )
        else:
            needs = f" [{', '.join(clause.needs)}]" if clause.needs else ""
            click.echo(
                f"{clause.level.value}  {clause.id:<26} {clause.sentence}{needs}{' (provisional)' if clause.provisional else ''}"
            )
