"""NVIDIA's attention libraries."""
