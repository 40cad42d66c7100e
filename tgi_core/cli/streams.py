"""Safe handling of closed standard streams."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def keep_standard_streams() -> None:
    """Open the null device in place of closed standard streams. Otherwise the next file or socket would get the stream's
    descriptor, and receive what native libraries write to standard error."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # open returns the lowest free descriptor, which is this one
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  it stays open


def give_up_stdout() -> None:
    """Redirect standard output to the null device, so that the interpreter does not retry failed writes at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
