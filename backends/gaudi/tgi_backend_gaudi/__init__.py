"""The Intel Gaudi backend of tgi-core."""

__version__ = "0.1.0"
