"""Checkpoint files: safetensors headers, indexes, memory-mapped tensors."""
