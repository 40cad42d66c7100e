"""Tensor parallelism: a model's weights divided among ranks by the plan that its own config carries."""
