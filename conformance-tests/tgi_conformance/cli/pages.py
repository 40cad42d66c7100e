"""Pages made from a folder of reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click


def page_of(folder: Path, out: Path | None, make: Callable[[Mapping[str, dict[str, Any]]], str]) -> None:
    """Write the page that `make` returns to `out`, or to standard output. Raises UsageError."""
    from tgi_conformance.report.document import BadReport, read_all

    try:
        text = make(read_all(folder))
        if out is None:
            click.echo(text, nl=False)
        else:
            out.write_text(text, encoding="utf-8")
    except BadReport as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.UsageError(f"--out {out}: {error.strerror}") from error
