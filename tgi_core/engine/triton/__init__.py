"""Kernels in Triton, shared by all devices that Triton compiles for. Only modules of kernels import it."""
