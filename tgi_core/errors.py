"""Errors that a person reads."""

from __future__ import annotations


class StartupError(Exception):
    """Serving cannot start. The message is one line that names the flag or file at fault and what to do; it is printed without a
    traceback and the process exits with status 1."""
