"""`tgi-conformance diff`: what changed between two reports."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command("diff")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
def command(old: Path, new: Path) -> None:
    """Compare the reports OLD and NEW. Exit status 1 if something that passed in OLD fails in NEW."""
    from tgi_conformance.report.comparing import changes
    from tgi_conformance.report.document import BadReport, objections, read

    documents = []
    for path in (old, new):
        try:
            document = read(path)
        except BadReport as error:
            raise click.UsageError(str(error)) from error
        if found := objections(document):
            raise click.UsageError(f"{path}: {found[0]}")
        documents.append(document)
    found_changes = changes(*documents)
    for change in found_changes:
        click.echo(f"{'worse' if change.worse else '     '}  {change.what}: {change.before} → {change.after}")
    if not found_changes:
        click.echo("nothing changed")
    sys.exit(any(change.worse for change in found_changes))
