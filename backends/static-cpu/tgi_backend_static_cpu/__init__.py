"""The CPU as a device that compiles one program per shape: a test device, used only when it is named."""

__version__ = "0.1.0"
