"""LoRA adapters: reading their files, and adding them to single rows of a step."""
