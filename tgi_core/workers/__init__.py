"""Worker processes for untrusted input: they have resource limits, can be killed, and are restarted."""
