"""The three standard streams, whatever the process was started with."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def keep_standard_streams() -> None:
    """Put the null device where a standard stream is closed: else the next file or socket would get its number, and what others, such as
    native libraries, write to standard error."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free, this one
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  it stays open


def give_up_stdout() -> None:
    """What could not be written is not tried again when the interpreter ends."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
