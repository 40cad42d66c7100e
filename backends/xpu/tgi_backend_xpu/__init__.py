"""The Intel GPU backend of tgi-core."""

__version__ = "0.1.0"
