"""Decoders of the Llama family, described by a table, so that a device can run them without transformers."""
