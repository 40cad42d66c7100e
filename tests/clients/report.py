"""A table for a terminal, or for a log."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def show(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows under their headings; without colours or lines where nobody looks."""
    console = Console()
    if console.is_terminal:
        table = Table(*headings)
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
        return
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
