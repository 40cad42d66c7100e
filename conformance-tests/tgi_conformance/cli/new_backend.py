"""`tgi-conformance new-backend`: write a backend that passes, to be replaced piece by piece."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("new-backend")
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path), help="The folder to write; ./NAME if not given.")
def command(name: str, out: Path | None) -> None:
    """Write the package tgi-backend-NAME, which passes L0 to L3 with a toy as its device. Nothing is overwritten."""
    from tgi_conformance.kit.writing import CannotWrite, check_name, new_backend

    try:
        check_name(name)
        folder = out or Path(name)
        for path in new_backend(name, folder):
            click.echo(path)
    except CannotWrite as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"\nnext: pip install -e {folder} && tgi-conformance run --backend {name} --level L1")
    click.echo(f"then replace what is marked `Replace:` in {folder}; docs/writing-a-backend.md explains the next steps")
