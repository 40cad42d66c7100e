"""`tgi-conformance verify`: whether a report is unedited, and what it grants."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command("verify")
@click.argument("report", type=click.Path(path_type=Path))
def command(report: Path) -> None:
    """Recompute the levels that REPORT grants, and detect tampering."""
    from tgi_conformance.report.document import BadReport, objections, read, same_suite

    try:
        document = read(report)
    except BadReport as error:
        raise click.UsageError(str(error)) from error
    found = objections(document)
    for objection in found:
        click.echo(f"{report}: {objection}", err=True)
    if found:
        sys.exit(1)
    for level, outcome in document["levels"].items():
        click.echo(f"{level}  {outcome}")
    click.echo(f"text-core  {document['text_core']}")
    if not same_suite(document):
        click.echo(
            f"A different suite ({document['suite']['version']}) wrote it, so its clauses were not compared with this one's."
        )
