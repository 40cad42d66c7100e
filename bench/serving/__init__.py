"""The whole server under load, with a device that costs nothing."""
