"""`tgi-conformance matrix`: make the support matrix from committed reports."""

from __future__ import annotations

from pathlib import Path

import click

from tgi_conformance.cli.pages import page_of


@click.command("matrix")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The file to write; standard output if not given.")
@click.option("--planned", multiple=True, help="A backend without a report yet; may be repeated.")
def command(folder: Path, out: Path | None, planned: tuple[str, ...]) -> None:
    """Generate the support matrix from the reports in FOLDER."""
    from tgi_conformance.report.support import support_matrix

    page_of(folder, out, lambda reports: support_matrix(reports, planned))
