"""Images in prompts: the vision tower of a model, and its embeddings at the placeholders of a step."""
