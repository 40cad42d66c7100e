"""Logs, progress, metrics and traces."""
