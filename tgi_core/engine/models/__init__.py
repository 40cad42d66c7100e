"""Building causal language models from transformers' own definitions."""
