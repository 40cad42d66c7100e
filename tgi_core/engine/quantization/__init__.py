"""Weights of linear layers: formats (how checkpoints store them), layouts (how memory holds them), kernels (what multiplies by them).

A checkpoint format is one file in `formats`: it knows names and shapes of tensors, says what it refuses, and unpacks what it finds into a
layout. A layout is one class over `Weight`. A kernel is one `LinearProvider` of a device. Only `Weight` goes from one to the next, so a new
format needs no new kernel: the last provider dequantizes.
"""
