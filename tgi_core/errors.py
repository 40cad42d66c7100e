"""Errors shown to the user."""

from __future__ import annotations


class StartupError(Exception):
    """The program cannot start. The message is one line that names the offending flag or file and a remedy. It is printed without a
    traceback, and the process exits with status 1."""


def one_line(error: Exception, most: int = 200) -> str:
    """The kind of an error, and the first `most` characters of its message, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:most]}"
