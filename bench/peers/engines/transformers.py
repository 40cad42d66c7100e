"""transformers' `generate`, continuing from its own cache."""

from __future__ import annotations

import torch
import transformers

from bench.peers.engines.protocol import About, Plan, serve


class Generate:
    """A static batch, greedy."""

    def __init__(self, plan: Plan) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(plan.model, dtype=torch.bfloat16).eval()
        self.model.generation_config.pad_token_id = 0
        self._cache: transformers.DynamicCache | None = None
        self._ids = torch.empty(0, 0, dtype=torch.long)
        self._prompt = 0

    def about(self) -> About:
        """Load the model with `from_pretrained`'s defaults."""
        flags = {
            "attention": self.model.config._attn_implementation,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }
        return About(transformers.__version__, "bfloat16", "bfloat16", flags)

    def start(self, prompts: list[list[int]], new: int) -> int:
        """Generate one token per row."""
        self._cache = transformers.DynamicCache()
        self._ids = torch.tensor(prompts)
        self._prompt = self._ids.shape[1]
        return self.go_on(1)

    def go_on(self, steps: int) -> int:
        """Generate more tokens."""
        self._ids = self.model.generate(
            self._ids,
            attention_mask=torch.ones_like(self._ids),
            past_key_values=self._cache,
            do_sample=False,
            max_new_tokens=steps,
            min_new_tokens=steps,
        )
        return self._ids.shape[0] * (self._ids.shape[1] - self._prompt)

    def end(self) -> list[list[int]]:
        """Drop the cache."""
        self._cache = None
        return [row[self._prompt :] for row in self._ids.tolist()]


if __name__ == "__main__":
    serve(Generate)
