"""Why a model is not run from a table."""

from __future__ import annotations


class UnsupportedFamily(Exception):
    """The table has no word for something that the model asks for, or the device cannot run such a table; the text says what."""
