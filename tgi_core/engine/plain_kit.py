"""Defaults of a `DeviceKit` for packages without kernels of their own: plain torch, no adapters, no 8-bit KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tgi_core.backend import Unsupported
from tgi_core.engine.attention.cache import KVCacheDtype
from tgi_core.engine.lora.layers import LoraKernel, TorchLoraKernel
from tgi_core.engine.lora.weights import LoraWeights
from tgi_core.engine.quantization.linear import LinearProvider
from tgi_core.engine.quantization.torch_linear import TorchLinears


class PlainKit:
    """A base of device kits; see `DeviceKit`. `dtypes` are those that the device runs, by torch's names."""

    dtypes: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    allocation_bytes = 0
    kv_cache_dtype: KVCacheDtype | None = None

    def choose_dtype(self, asked: str, stored: torch.dtype) -> torch.dtype:
        """The requested dtype, or the stored one. Raises Unsupported."""
        wanted = str(stored).removeprefix("torch.") if asked == "auto" else asked
        if wanted not in self.dtypes:
            raise Unsupported(f"dtype {wanted}: this device runs {', '.join(self.dtypes)}")
        return self.dtypes[wanted]

    def linears(self) -> Sequence[LinearProvider]:
        """torch's."""
        return (TorchLinears(),)

    def lora_kernel(self, weights: dict[int, LoraWeights]) -> LoraKernel:
        """torch's."""
        return TorchLoraKernel(weights)

    def default_rows(self) -> int:
        """Few, for devices that compile each number of rows."""
        return 32

    def default_step_tokens(self) -> int:
        """A chunk of 1,024 tokens in addition to all decode rows."""
        return 1024 + self.default_rows()

    def table_refusal(self) -> str:
        """Empty: plain torch runs every table."""
        return ""
