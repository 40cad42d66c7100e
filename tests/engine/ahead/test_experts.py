"""Models with experts run one step ahead, and their decode steps are captured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.ahead.late import LateKit, LateQueue
from tests.engine.ahead.opened import PLAN, Ahead
from tests.engine.tiny_configs import TRANSFORMERS_5
from tests.engine.tiny_models import PROMPTS, expected_tokens, save_tiny, silent
from tgi_core.backend import OpenOptions, Progress
from tgi_core.backend.session import Session
from tgi_core.engine.decoder.torch_operators import TorchOperators
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import TableRunner
from tgi_core.engine.experts import ExpertsKernel
from tgi_core.engine.open_model import open_session
from tgi_core.engine.paged_decoder import PagedDecoderRunner


class Modules(LateKit):
    """A late device with a kernel of experts, which runs transformers' modules."""

    def experts(self) -> ExpertsKernel:
        """torch's operators."""
        return TorchOperators()


class Tables(Modules):
    """One that runs tables."""

    def table_refusal(self) -> str:
        """It runs every table."""
        return ""

    def table_runner(self, weights: DecoderWeights, progress: Progress) -> TableRunner:
        """By torch's operators."""
        return PagedDecoderRunner(self, weights, (TorchOperators(),), progress)


waits = pytest.mark.skipif(
    not TRANSFORMERS_5, reason="the experts of transformers 4 wait for the host, so steps are not captured"
)
CASES = [
    ("mixtral", Tables),
    ("qwen2_moe", Tables),
    ("gpt_oss", Tables),
    ("deepseek_v3", Tables),
    ("deepseek_v2", Tables),
    pytest.param("mixtral", Modules, marks=waits),
    pytest.param("deepseek_v3", Modules, marks=waits),
]


@pytest.mark.parametrize(("model_type", "kit"), CASES)
def test_experts(model_type: str, kit: type[Modules], tmp_path: Path) -> None:
    """Steps whose tokens choose other experts than those that were captured make the tokens of transformers' modules."""
    folder, queue = save_tiny(model_type, tmp_path, num_hidden_layers=2, **LAYERS.get(model_type, {})), LateQueue()
    session = Session(open_session(OpenOptions(str(folder), dtype="float32"), kit(queue), silent), "late")
    capacity = session.warmup(PLAN, silent)
    found = {kernel.part: kernel.name for kernel in session.capabilities().kernels}
    assert (found["graphs"], found["run ahead"]) == ("decode steps", "one step") and capacity.compiles > 0
    assert found["step"] == ("table" if kit is Tables else "transformers' modules")
    run = Ahead(session)
    run.launch(*(run.request(id, prompt) for id, prompt in enumerate(PROMPTS, 1)))
    for _ in range(5):
        run.launch()
    run.finish()
    for id, expected in enumerate(expected_tokens(folder), 1):
        assert run.tokens(id) == expected[:6]


LAYERS: dict[str, dict[str, object]] = {"gpt_oss": {"layer_types": ["sliding_attention", "full_attention"]}}
