"""Decoders of the Llama family as a table: what a device needs to run one by itself, without transformers."""
