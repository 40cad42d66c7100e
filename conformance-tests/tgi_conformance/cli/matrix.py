"""`tgi-conformance matrix`: the support matrix from committed reports."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("matrix")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Where to write it; standard output if not given.")
@click.option("--planned", multiple=True, help="A backend that has no report yet; may be repeated.")
def command(folder: Path, out: Path | None, planned: tuple[str, ...]) -> None:
    """Make the support matrix from the reports in FOLDER."""
    from tgi_conformance.report.document import BadReport, objections, read
    from tgi_conformance.report.support import support_matrix

    reports = {}
    for path in sorted(folder.glob("*.json")):
        try:
            document = read(path)
        except BadReport as error:
            raise click.UsageError(str(error)) from error
        if found := objections(document):
            raise click.UsageError(f"{path}: {found[0]}")
        reports[document["backend"]["name"]] = document
    text = support_matrix(reports, planned)
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
