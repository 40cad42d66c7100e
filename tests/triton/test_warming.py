"""After warm-up no step compiles a kernel: real compilation for a chip, and a driver that only takes notes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.engine.ahead.late import LateKit, LateQueue
from tests.engine.tiny_models import save_tiny, silent
from tests.triton.noting import NotingDriver
from tests.triton.test_launches import TILES
from tgi_core.backend import OutputOptions, Request, Sampling, WarmupPlan
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.ahead.device import QueuedDevice
from tgi_core.engine.ahead.warmup import warm_up
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.decoder.table import read_table
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device_queue import StepSampler
from tgi_core.engine.paged_decoder import PagedDecoderRunner
from tgi_core.engine.quantization.stored import open_weights
from tgi_core.engine.triton.operators import TritonOperators
from tgi_core.engine.triton.provider import TritonAttention
from tgi_core.engine.triton.sampling import TritonSampler
from tgi_core.model_files import read_json

PLAN = WarmupPlan(max_rows=8, max_row_tokens=2048, max_step_tokens=2048)


class Operators(TritonOperators):
    """Those, unchecked: nothing is computed."""

    def self_check(self, *asked: object) -> str:
        """Nothing is wrong."""
        return ""


class Attention(TritonAttention):
    """The same of attention."""

    def self_check(self, *asked: object) -> str:
        """Nothing is wrong."""
        return ""


class Queue(LateQueue):
    """Does at once what it is given."""

    def sampler(self) -> StepSampler:
        """Triton's."""
        return TritonSampler()


class Kit(LateKit):
    """A device with Triton's attention, of 132 multiprocessors."""

    def attention(self) -> Sequence[AttentionProvider]:
        """Triton's alone."""
        return (Attention(TILES, 132),)


def row(id: int, length: int, **fields: object) -> RowState:
    """A row of so many tokens, all in block 1."""
    request = Request(id, (0,) * length, length, 0, ((),), length, **fields)  # type: ignore[arg-type]
    return RowState(request, [0] * length, length, ([1] * -(-length // 16),))


def test_no_request_waits_for_a_compile(driver: NotingDriver, tmp_path: Path) -> None:
    """Rows alone and together, short and long, prompts of two tokens and of many, beside decode rows or not, scored, drawn or not:
    warm-up has compiled all that they run, also where no step is captured."""
    queue = Queue(eager=True, graphs="none")
    kit = Kit(queue)
    folder = save_tiny("qwen3", tmp_path, num_hidden_layers=1, max_position_embeddings=2048)
    weights = DecoderWeights(read_table(read_json(folder / "config.json")), open_weights(folder), torch.bfloat16)
    runner = PagedDecoderRunner(kit, weights, (Operators(),), silent)
    device = QueuedDevice(kit, queue, runner.shape)
    steps, _ = warm_up(device, runner, PLAN, False, silent)
    before, chance = len(driver.loaded), random.Random(0)
    kinds = (
        {},
        {"sampling": Sampling(do_sample=True, seed=1)},
        {"want": OutputOptions(prompt_logprobs=True)},
        {"want": OutputOptions(top_n=1)},
    )
    for turn in range(60):
        row_inputs = []
        for place in range(chance.randint(1, 6)):
            length, take = chance.choice((1, 2, 17, 300, 2000)), chance.choice((1, 1, 2, 3, 9, 100))
            live = row(10 * turn + place, length, **chance.choice(kinds))
            start = max(0, length - take)
            row_inputs.append(RowInput(live, start, length - start, yields=True))
        steps.enqueue(row_inputs, {row_input.row.request.id for row_input in row_inputs}).wait()
    assert before and driver.loaded[before:] == []
