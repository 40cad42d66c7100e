"""The error for models that cannot run from a table."""

from __future__ import annotations


class UnsupportedFamily(Exception):
    """The table cannot describe the model, or the device cannot run the table; the text says why."""
