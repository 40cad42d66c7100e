"""What somebody sees who starts the server on a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

CHILD = """
import logging, sys
from tgi_core.telemetry.logs import announce, set_up
from tgi_core.telemetry.progress import progress

set_up(json_output=sys.argv[1] == "json")
with progress() as show:
    show("loading", 1, 4, "")
    sys.stdin.readline()
    logging.getLogger("x").warning("a [bold]line[/bold] :smile: " + "that is long " * 20)
    announce("and another")
    show("loading", 4, 4, "")
logging.getLogger("x").warning("afterwards")
"""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def shown(kind: str) -> str:
    """What the child writes to a terminal of its own; it goes on once its bar has been drawn."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LOG_LEVEL": "info"}
    with subprocess.Popen([sys.executable, "-c", CHILD, kind], stdin=subprocess.PIPE, stderr=theirs, env=environment) as child:
        os.close(theirs)
        data = b""
        while piece := _read(ours):
            data += piece
            if b"loading: 1 of 4" in data and child.stdin is not None and not child.stdin.closed:
                child.stdin.write(b"\n")
                child.stdin.close()
    os.close(ours)
    assert child.returncode == 0
    return data.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""


@pytest.mark.parametrize("kind", ["plain", "json"])
def test_a_log_line_is_apart_from_the_bar(kind: str) -> None:
    """While a bar is shown each line that is logged is a whole line of the terminal, as it was written; and after it too."""
    erased = "\x1b[2K"
    lines = [CONTROL.sub("", line.rpartition(erased)[2]) for line in shown(kind).split("\n")]
    for text in ("a [bold]line[/bold] :smile: " + ("that is long " * 20).strip(), "and another", "afterwards"):
        [line] = [line for line in lines if text in line]
        assert "loading" not in line and "━" not in line
        assert line.startswith("{" if kind == "json" else (text if text == "and another" else "20"))
    assert any("loading: 4 of 4" in line for line in lines)
