"""Kernels in Triton's language for devices that it compiles for: attention over the paged cache, and the fused operations around it."""
