"""What a ragged step through transformers' modules asks of its device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from tgi_core.engine.attention.interface import use_attention
from tgi_core.engine.models.attention_layers import ShapeRecorder, use_ragged_attention

READS = (torch.ops.aten.item, torch.ops.aten._local_scalar_dense)
"""A read of one value, as inference mode dispatches it and as other modes do."""


class HostReads(TorchDispatchMode):
    """Counts the values that the host reads from tensors."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        self.count += func.overloadpacket in READS
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("pad_token_id", [0, 5])
def test_no_input_id_is_read_on_the_host(pad_token_id: int) -> None:
    """A model whose config names a padding token is not searched for it: that would wait for the device, and fail in a graph."""
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32, "n_positions": 16, "bos_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model("gpt2", **sizes, pad_token_id=pad_token_id)
    model = AutoModelForCausalLM.from_config(config).eval()
    call, _ = use_ragged_attention(model)
    ids = torch.arange(4).unsqueeze(0)
    with torch.inference_mode(), use_attention(ShapeRecorder(torch.device("cpu"))), HostReads() as reads:
        call(ids, ids, torch.tensor([3]))
    assert reads.count == 0
