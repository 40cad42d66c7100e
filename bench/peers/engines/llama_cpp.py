"""llama.cpp through llama-cpp-python's bindings of its C API. Each row is a sequence with its own cache."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import llama_cpp
import numpy as np

from bench.peers.engines.protocol import About, Plan, serve

HAS_AMX = " amx_int8" in Path("/proc/cpuinfo").read_text()
"""llama.cpp's AMX kernels for quantized weights end with a segmentation fault: they are switched off."""
UBATCH = 512
"""Tokens that llama.cpp computes at once (its default)."""
WEIGHTS = {
    "": ("bfloat16", ""),
    "int8": ("q8_0 (8.5 bits per weight), rows of 8 bits", "-q8_0"),
    "int4": ("q4_0 (4.5 bits per weight; embeddings and head q8_0), rows of 8 bits", "-q4_0"),
}
"""Number format and the end of the file's name."""


class LlamaCpp:
    """One batch for all prompts, then one per step."""

    def __init__(self, plan: Plan) -> None:
        llama_cpp.llama_backend_init()
        self._precision, suffix = WEIGHTS[plan.weights]
        path = plan.model.with_name(f"{plan.model.name}{suffix}.gguf")
        loading = llama_cpp.llama_model_default_params()
        loading.use_extra_bufts = self._repacked = not (plan.weights and HAS_AMX)
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), loading)
        settings = llama_cpp.llama_context_default_params()
        settings.n_seq_max = plan.rows
        settings.n_ctx = plan.rows * (-(-plan.row_tokens // 256) * 256)
        settings.n_batch = plan.step_tokens
        settings.n_ubatch = UBATCH
        settings.n_threads = settings.n_threads_batch = len(os.sched_getaffinity(0))
        settings.kv_unified = False
        self.settings = settings
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(plan.step_tokens, 0, 1)
        self._rows: list[list[int]] = []
        self._length = 0

    def about(self) -> About:
        """Open the model with a 16-bit cache and llama.cpp's default attention."""
        settings = self.settings
        flags = {
            "threads": settings.n_threads,
            "n_ubatch": settings.n_ubatch,
            "kv_unified": settings.kv_unified,
            "use_extra_bufts": self._repacked,
            "system": (llama_cpp.llama_print_system_info() or b"").decode().strip(),
        }
        return About(f"llama-cpp-python {llama_cpp.__version__}", self._precision, "float16", flags)

    def start(self, prompts: list[list[int]], new: int) -> int:
        """Prefill as many prompts per batch as fit."""
        self._rows, self._length = [[] for _ in prompts], len(prompts[0])
        at_once = max(1, self.settings.n_batch // self._length)
        for first in range(0, len(prompts), at_once):
            self._run([(row, 0, prompts[row]) for row in range(first, min(first + at_once, len(prompts)))])
        return len(prompts)

    def go_on(self, steps: int) -> int:
        """Decode in batches of one token per row."""
        for _ in range(steps):
            self._run([(row, self._length, tokens[-1:]) for row, tokens in enumerate(self._rows)])
            self._length += 1
        return sum(len(row) for row in self._rows)

    def end(self) -> list[list[int]]:
        """Clear the cache."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)
        return self._rows

    def _run(self, parts: list[tuple[int, int, list[int]]]) -> None:
        """Run rows with their first positions and tokens; returns the likeliest next token of each."""
        count = 0
        last: list[tuple[int, int]] = []
        for row, position, tokens in parts:
            for offset, token in enumerate(tokens):
                self.batch.token[count] = token
                self.batch.pos[count] = position + offset
                self.batch.n_seq_id[count] = 1
                self.batch.seq_id[count][0] = row
                self.batch.logits[count] = offset == len(tokens) - 1
                count += 1
            last.append((row, count - 1))
        self.batch.n_tokens = count
        status = llama_cpp.llama_decode(self.context, self.batch)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        for row, index in last:
            logits = ctypes.cast(
                llama_cpp.llama_get_logits_ith(self.context, index), ctypes.POINTER(ctypes.c_float * self.vocab_size)
            )
            self._rows[row].append(int(np.frombuffer(logits.contents, dtype=np.float32).argmax()))


if __name__ == "__main__":
    serve(LlamaCpp)
