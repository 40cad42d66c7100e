"""A command on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from types import TracebackType
from typing import Self

from tests.serve.process import TGI, environment

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """`tgi` with a terminal as its standard streams, while the block runs."""

    def __init__(self, *arguments: str) -> None:
        self._arguments, self.shown = arguments, ""
        self._at = 0

    def __enter__(self) -> Self:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        # a program that runs in the background ignores Ctrl-C, and so would its children
        command = ["setsid", "--ctty", "env", "--default-signal=INT", *TGI, *self._arguments]
        variables = environment({"TERM": "xterm", "COLUMNS": "160"})
        self.child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=variables)
        os.close(theirs)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.child.poll() is None:
            self.child.terminate()
            self.child.wait(60)
        os.close(self._ours)

    def type(self, text: str) -> None:
        """Type keys; \\x03 is Ctrl-C."""
        os.write(self._ours, text.encode())

    def until(self, text: str, seconds: float = 60.0) -> str:
        """What is shown up to a text that has not been waited for before; AssertionError with everything shown if it does not come."""
        end, start = time.monotonic() + seconds, self._at
        while (found := self._plain().find(text, start)) < 0:
            assert self._read(end), f"{text!r} is not shown: {self.shown!r}"
        self._at = found + len(text)
        return self._plain()[start:found]

    def press(self, key: str, text: str) -> None:
        """Press a key, again every second, until a text is shown: readline overlooks a signal in the moment before it waits for input."""
        for _ in range(60):
            self.type(key)
            end = time.monotonic() + 1.0
            while self._plain().find(text, self._at) < 0 and self._read(end):
                pass
            if self._plain().find(text, self._at) >= 0:
                break
        self.until(text, 0.0)

    def end(self, seconds: float = 60.0) -> int:
        """Wait for the end of the program; its exit status."""
        while self._read(time.monotonic() + seconds):
            pass
        return self.child.wait(seconds)

    def _plain(self) -> str:
        return CONTROL.sub("", self.shown)

    def _read(self, end: float) -> bool:
        if not select.select([self._ours], [], [], max(0.0, end - time.monotonic()))[0]:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the other side is closed
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)
