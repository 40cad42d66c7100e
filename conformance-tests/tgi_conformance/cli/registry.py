"""`tgi-conformance registry`: make the page of backends from committed reports."""

from __future__ import annotations

from pathlib import Path

import click

from tgi_conformance.cli.pages import page_of


@click.command("registry")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The file to write; standard output if not given.")
def command(folder: Path, out: Path | None) -> None:
    """Generate the page that lists the backends with a report in FOLDER."""
    from tgi_conformance.report.registry import registry

    page_of(folder, out, lambda reports: registry(reports.values()))
