"""Models run with their own caches, whatever transformers calls the cache."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM, PreTrainedModel

from tests.engine.tiny_configs import TRANSFORMERS_5
from tgi_core.engine.hf_cache import HFCacheModel


def llama() -> PreTrainedModel:
    """Keys and values."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=2, **sizes))


def mamba() -> PreTrainedModel:
    """A state."""
    return MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4))


own_class = pytest.mark.skipif(not TRANSFORMERS_5, reason="in transformers 4, Mamba's cache is of a class of its own")


@pytest.mark.parametrize("make", [llama, pytest.param(mamba, marks=own_class)])
def test_a_row_goes_on_from_its_cache(make: Callable[[], PreTrainedModel]) -> None:
    """A model gets a cache of its own, and one token with it gives the logits of the whole row without."""
    torch.manual_seed(0)
    model, tokens = make().eval(), [5, 9, 2, 7, 11]
    runner = HFCacheModel(model)
    cache = runner.new_cache()
    assert cache, "the model takes no cache: each step would run its whole row again"
    with torch.inference_mode():
        runner.run(tokens[:4], 0, cache, 1)
        found = runner.run(tokens, 4, cache, 1)
        whole = model(torch.tensor([tokens]), use_cache=False).logits[0, -1:]
    assert torch.allclose(found, whole, atol=1e-5)
