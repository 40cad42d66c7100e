"""OpenVINO GenAI's continuous batching, step by step."""

from __future__ import annotations

import numpy as np
import openvino
import openvino_genai
from openvino_genai import ContinuousBatchingPipeline, GenerationConfig, SchedulerConfig

from bench.peers.engines.protocol import About, Plan, serve

NATIVE = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
PRECISION = "bf16" if NATIVE else "f32"
"""On a CPU without bfloat16 instructions, OpenVINO computes in float32 regardless of the hint and rejects a bfloat16 cache."""
PROPERTIES = {"INFERENCE_PRECISION_HINT": PRECISION, "KV_CACHE_PRECISION": PRECISION}
"""Disables the default 8-bit cache, which no other engine uses."""
PLAIN = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
"""Disables the default 8-bit rows, which no other engine uses with weights of 16 bits."""
NAMES = {"bf16": "bfloat16", "f32": "float32"}
FORMATS = {
    "": ("float16 in the file", NAMES[PRECISION]),
    "int8": ("int8", "int8 (8 bits per weight), rows of 8 bits"),
    "int4": ("int4 in groups of 64", "int4 (4.25 bits per weight; embeddings and head int8), rows of 8 bits"),
}
"""By weights: what is in the file, and the number format."""


class OpenVino:
    """All prompts in one step, then all rows together."""

    def __init__(self, plan: Plan) -> None:
        scheduler = SchedulerConfig()
        scheduler.max_num_batched_tokens = plan.step_tokens
        scheduler.max_num_seqs = plan.rows
        scheduler.cache_size = 2
        scheduler.enable_prefix_caching = False
        folder = plan.model.with_name(f"{plan.model.name}-openvino{plan.weights and f'-{plan.weights}'}")
        self._properties = PROPERTIES if plan.weights else PROPERTIES | PLAIN
        self._stored, self._precision = FORMATS[plan.weights]
        self.pipeline = ContinuousBatchingPipeline(str(folder), scheduler, "CPU", self._properties)
        self._rows: list[list[int]] = []
        self._handles: list[openvino_genai.GenerationHandle] = []
        self._next_id = 0

    def about(self) -> About:
        """Open the model; its precision depends on the CPU."""
        flags = {**self._properties, "weights": self._stored}
        return About(openvino_genai.__version__, self._precision, NAMES[PRECISION], flags)

    def start(self, prompts: list[list[int]], new: int) -> int:
        """Run until every row has its first token."""
        config = GenerationConfig(max_new_tokens=new, min_new_tokens=new, ignore_eos=True, do_sample=False)
        config.set_eos_token_id(0)  # the model has none, which OpenVINO would reject
        self._rows = [[] for _ in prompts]
        self._handles = []
        for prompt in prompts:
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            self._handles.append(self.pipeline.add_request(self._next_id, ids, config))
            self._next_id += 1
        return self._until(1)

    def go_on(self, steps: int) -> int:
        """Run until each row has `steps` more tokens."""
        return self._until(min(len(row) for row in self._rows) + steps)

    def end(self) -> list[list[int]]:
        """Nothing to do once all rows are complete."""
        while self.pipeline.has_non_finished_requests():
            self._step()
        return self._rows

    def _until(self, length: int) -> int:
        while min(len(row) for row in self._rows) < length:
            self._step()
        return sum(len(row) for row in self._rows)

    def _step(self) -> None:
        self.pipeline.step()
        for row, handle in zip(self._rows, self._handles, strict=True):
            while handle.can_read():
                for output in handle.read().values():
                    row += output.generated_ids


if __name__ == "__main__":
    serve(OpenVino)
