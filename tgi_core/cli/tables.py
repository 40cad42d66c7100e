"""Tables on standard output: drawn on a terminal, plain columns for programs and logs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

Rows = Sequence[tuple[str, ...]]


def show_table(heads: tuple[str, ...], rows: Rows, title: str | None = None) -> None:
    """Print a table."""
    if not sys.stdout.isatty():
        for line in aligned([heads, *rows] if any(heads) else rows):
            click.echo(line)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*heads, title=title, show_header=any(heads), title_justify="left")
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def aligned(rows: Rows) -> list[str]:
    """Format a table for programs and logs: columns are padded and two spaces apart, "-" stands for nothing."""
    filled = [tuple(cell or "-" for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in filled]
