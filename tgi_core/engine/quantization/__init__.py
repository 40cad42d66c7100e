"""Weights of linear layers: formats (in checkpoints), layouts (in memory) and kernels (GEMMs).

A checkpoint format is one file in `formats`: it knows the names and shapes of tensors, refuses what it does not support, and unpacks the
rest into a layout. A layout is a subclass of `Weight`. A kernel is a `LinearProvider` of a device. They share only `Weight`, so a new
format needs no new kernel: the last provider dequantizes.
"""
