"""Serving overhead without a model: CPU time per token of the entire server, over HTTP."""
