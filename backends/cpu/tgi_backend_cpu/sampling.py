"""Sampling with the native kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from tgi_backend_cpu.kernels import Kernels
from tgi_core.engine.sampler import SampledTokens


class NativeSampler:
    """Argmax, logprob and draws at a temperature for all plain rows in one native call; see `PlainSampler`."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def choose(self, logits: Tensor, rows: Sequence[int], draws: Sequence[tuple[float, float]], totals: bool) -> SampledTokens:
        """For `rows` of logits [rows, vocabulary], float32 and contiguous."""
        count = len(rows)
        chosen = np.asarray(rows, np.int32)
        temperatures, uniforms = np.asarray(draws, np.float64).reshape(count, 2).T.copy()
        tokens, logprobs = np.empty(count, np.int64), np.empty(count, np.float64)
        self._kernels.call.tgi_sample(
            self._kernels.pool,
            logits.data_ptr(),
            logits.shape[-1],
            count,
            chosen.ctypes.data,
            temperatures.ctypes.data,
            uniforms.ctypes.data,
            int(totals),
            tokens.ctypes.data,
            logprobs.ctypes.data,
        )
        return SampledTokens(tokens.tolist(), logprobs.tolist())
