"""The matrix for people and machines: a table on a terminal, plain lines elsewhere, an HTML page, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.console import Console
from rich.table import Table

from tgi_conformance.proof.tally import Kills, Matrix


def lines(matrix: Matrix, seeds: int, seconds: float) -> Iterator[str]:
    """Yield the matrix by clause, what is wrong with it, and the figures."""
    for clause in matrix.clauses:
        yield f"{clause:<24} {_named(matrix.killed_by(clause)) or 'kills none'}"
    yield ""
    for title, found in wrongs(matrix):
        yield from (f"{title}: {line}" for line in found)
    yield summary(matrix, seeds, seconds)


def wrongs(matrix: Matrix) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the lists that must be empty, with titles."""
    return (("survived", matrix.survivors), ("kills none", matrix.idle), ("false alarm", matrix.alarms))


def summary(matrix: Matrix, seeds: int, seconds: float) -> str:
    """Summarize the matrix in one line."""
    meant = [kills for kills in matrix.cells.values() if kills.meant]
    sure = sum(kills.sure for kills in meant)
    return (
        f"{len(matrix.clauses)} clauses, {len(matrix.mutants)} mutants, {len(matrix.twins)} good twins, {seeds} seeds: "
        f"{sure} of {len(meant)} intended kills by every seed, {len(matrix.idle)} idle clauses, {len(matrix.alarms)} false alarms "
        f"in {seconds:.0f} s"
    )


def _named(kills: dict[str, Kills]) -> str:
    return ", ".join(name if item.sure else f"{name} ({item.killed} of {item.tried})" for name, item in kills.items())


def show(matrix: Matrix, seeds: int, seconds: float, console: Console) -> None:
    """Print the matrix to a terminal."""
    table = Table(box=None, pad_edge=False)
    table.add_column("clause")
    table.add_column("seeds", justify="right")
    table.add_column("mutants meant for it")
    for clause in matrix.clauses:
        kills = matrix.killed_by(clause)
        style = "green" if any(item.sure for item in kills.values()) else "bold red"
        tried = min((item.killed for item in kills.values()), default=0)
        table.add_row(f"[{style}]{clause}[/]", str(tried), _named(kills) or "none")
    console.print(table)
    for title, found in wrongs(matrix):
        for line in found:
            console.print(f"[bold red]{title}[/] {line}", highlight=False)
    console.print(summary(matrix, seeds, seconds), highlight=False)


def as_json(matrix: Matrix, seeds: int, seconds: float) -> str:
    """Render cells as [killed, tried, meant] by mutant and clause."""
    cells: dict[str, dict[str, list[int | bool]]] = {mutant: {} for mutant in matrix.mutants}
    for (mutant, clause), kills in sorted(matrix.cells.items()):
        if kills.meant or kills.killed:
            cells[mutant][clause] = [kills.killed, kills.tried, kills.meant]
    value = {
        "proved": matrix.proved,
        "seeds": seeds,
        "seconds": round(seconds, 1),
        "clauses": matrix.clauses,
        "twins": matrix.twins,
        "mutants": cells,
        "survivors": matrix.survivors,
        "idle": matrix.idle,
        "alarms": matrix.alarms,
    }
    return json.dumps(value, indent=1) + "\n"


def as_html(matrix: Matrix, seeds: int, seconds: float) -> str:
    """Render the whole grid, with a row per mutant and a column per clause."""
    environment = Environment(
        loader=PackageLoader("tgi_conformance.proof", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    template = environment.get_template("matrix.html.j2")
    return template.render(matrix=matrix, wrongs=wrongs(matrix), summary=summary(matrix, seeds, seconds))
