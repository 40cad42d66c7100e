"""Reads the attention that a model computes with plain operators, so that this engine can compute it instead."""
