"""What bfloat16 costs in accuracy, on the demo model."""

from __future__ import annotations

import pytest
import torch
from tgi_backend_cpu.building import CHOICE, EMULATED, VARIANTS, Variant

from bench.accuracy import Prompts, demo_prompts, errors, our_logits, transformers_logits
from tests.cpu.conftest import kernels_of
from tgi_core.model_files import DEMO


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    """The start of the model's card."""
    return demo_prompts(4, 128)


@pytest.fixture(scope="module")
def truth(prompts: Prompts) -> torch.Tensor:
    """Logits in float32."""
    return transformers_logits(DEMO, prompts, torch.float32)


@pytest.mark.parametrize("variant", [*VARIANTS, EMULATED], ids=lambda variant: variant.name)
def test_errors_are_no_larger_than_transformers(
    variant: Variant, prompts: Prompts, truth: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each instruction set's errors in bfloat16 against float32 are no larger than those of transformers in bfloat16. A token stays the
    likeliest unless it leads by less than these errors: between such tokens, chance decides in both engines."""
    kernels_of(variant)
    monkeypatch.setenv(CHOICE, variant.name)
    ours = our_logits(DEMO, prompts, "bfloat16")
    rms = errors(ours, truth).rms
    assert rms <= errors(transformers_logits(DEMO, prompts, torch.bfloat16), truth).rms
    first, second = truth.topk(2).values.T
    decided = first - second > 6 * rms
    assert decided.double().mean() > 0.9
    assert torch.equal(ours[decided].argmax(-1), truth[decided].argmax(-1))
