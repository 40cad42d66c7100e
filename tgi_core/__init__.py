"""The core of a language-model server in which hardware is a plugin."""

__version__ = "0.1.0"
