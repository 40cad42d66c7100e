"""Decoders that run from their table on torch: any device, plain operators."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.engine.family_flags import EXPERT_FLAGS, FLAGS, save_flagged
from tests.engine.tiny_models import PROMPTS, VOCAB, Schedule, expected_tokens, ragged_schedule, save_tiny, silent
from tgi_core.backend import (
    EMPTY,
    Capacity,
    Group,
    Kernel,
    OpenOptions,
    OutputOptions,
    Progress,
    Request,
    Unsupported,
    WarmupPlan,
)
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.backend.session import Session
from tgi_core.engine.attention.cache import KVCacheDtype, LayerCache, LayerShape, PagedLayer
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import DecodeRows, StepMetadata, build
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.decoder.checking import operators_disagreement
from tgi_core.engine.decoder.operators import Heads, Operators
from tgi_core.engine.decoder.partition import RankWeights
from tgi_core.engine.decoder.table import FAMILIES, DecoderTable, read_table
from tgi_core.engine.decoder.torch_operators import TorchOperators
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import TableRunner
from tgi_core.engine.experts import ExpertsKernel
from tgi_core.engine.lora.layers import LoraKernel
from tgi_core.engine.lora.weights import LoraWeights
from tgi_core.engine.open_model import open_session, table_weights
from tgi_core.engine.paged_decoder import PagedDecoderRunner
from tgi_core.engine.quantization.linear import LinearProvider
from tgi_core.engine.quantization.stored import open_weights
from tgi_core.engine.quantization.torch_linear import TorchLinears
from tgi_core.model_files import read_json

PLAN = WarmupPlan(max_rows=4, max_row_tokens=64)


class KeptAttention(TorchAttention):
    """Plain torch; `layers` are the caches that it made."""

    def __init__(self) -> None:
        self.layers: list[LayerCache] = []

    def new_layer(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """A cache that is kept in mind."""
        self.layers.append(super().new_layer(shape, num_blocks, block_size, dtype, device))
        return self.layers[-1]


class TorchKit:
    """A device that has torch's operators and nothing of its own."""

    collectives = "gloo"
    allocation_bytes = 0

    def __init__(self, *operators: Operators) -> None:
        self.device = torch.device("cpu")
        self.operators = operators or (TorchOperators(),)
        self.provider: AttentionProvider = TorchAttention()
        self.kv_cache_dtype: KVCacheDtype | None = None

    def choose_dtype(self, asked: str, stored: torch.dtype) -> torch.dtype:
        """What is asked for."""
        return stored if asked == "auto" else getattr(torch, asked)

    def linears(self) -> Sequence[LinearProvider]:
        """torch's."""
        return (TorchLinears(),)

    def lora_kernel(self, weights: dict[int, LoraWeights]) -> LoraKernel:
        """No model runs module by module here."""
        raise AssertionError("the model did not run from its table")

    def attention(self) -> Sequence[AttentionProvider]:
        """Plain torch."""
        return (self.provider,)

    def queue(self) -> None:
        """A step is done when its call returns."""

    def free_bytes(self) -> int:
        """A little."""
        return 1 << 30

    def default_rows(self) -> int:
        """A few."""
        return 8

    def default_step_tokens(self) -> int:
        """Some."""
        return 256

    def choices(self) -> tuple[Kernel, ...]:
        """None."""
        return ()

    def experts(self) -> ExpertsKernel | None:
        """Those of its operators."""
        return self.operators[0]

    def table_refusal(self) -> str:
        """It runs every table."""
        return ""

    def table_runner(self, weights: DecoderWeights, progress: Progress) -> TableRunner:
        """The runner under test."""
        return PagedDecoderRunner(self, weights, self.operators, progress)


def open_torch(folder: Path, kit: TorchKit | None = None, dtype: str = "float32") -> tuple[Session, Capacity]:
    """A warmed session on a checkpoint."""
    session = Session(open_session(OpenOptions(str(folder), dtype=dtype), kit or TorchKit(), silent), "torch")
    return session, session.warmup(PLAN, silent)


def check_exact(folder: Path, kit: TorchKit | None = None) -> None:
    """The schedule's tokens are those of `generate`, and the model runs from its table."""
    session, capacity = open_torch(folder, kit)
    assert "table" in {kernel.name for kernel in session.capabilities().kernels if kernel.part == "step"}
    made = ragged_schedule(session, capacity)
    for expected, id in zip(expected_tokens(folder), made, strict=True):
        assert made[id] and made[id] == expected[: len(made[id])]


@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) & set(CONFIG_MAPPING)))
def test_family_is_token_exact(model_type: str, tmp_path: Path) -> None:
    """In float32 each type makes transformers' own greedy tokens: in chunks, in steps mixed of prefill and decode, within windows."""
    check_exact(save_tiny(model_type, tmp_path))


@pytest.mark.parametrize(("model_type", "fields"), FLAGS + EXPERT_FLAGS)
def test_flags_of_the_family(model_type: str, fields: dict[str, object], tmp_path: Path) -> None:
    """Biases, tied weights, rotary variants, windows of some layers, scalings and experts, each against transformers."""
    check_exact(save_flagged(model_type, fields, tmp_path))


class Elsewhere(TorchKit):
    """A device without a kernel of experts."""

    def experts(self) -> None:
        """None."""


@pytest.mark.parametrize(("model_type", "fields"), [("mixtral", {}), EXPERT_FLAGS[-1]])
def test_devices_without_experts(model_type: str, fields: dict[str, object], tmp_path: Path) -> None:
    """They are never given a table that their step does not know."""
    with pytest.raises(UnsupportedFamily, match="experts or attention sinks"):
        table_weights(OpenOptions(str(save_flagged(model_type, fields, tmp_path))), Elsewhere())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes(dtype: str, llama: Path) -> None:
    """A model runs in the device's narrow dtypes too: it proves at load, and its logprobs are near those of float32."""
    logprobs = []
    for name in (dtype, "float32"):
        session, capacity = open_torch(llama, dtype=name)
        request = Schedule(session, capacity).request(1, PROMPTS[2], len(PROMPTS[2]))
        request = replace(request, want=OutputOptions(prompt_logprobs=True))
        rows = session.rows(session.prefill((request,), EMPTY, ())).rows
        logprobs.append(torch.tensor(rows[0].prompt_logprobs[1:] + rows[0].logprobs))
    assert len(logprobs[0]) == len(PROMPTS[2]) and torch.allclose(*logprobs, atol=0.2, rtol=0.05)


def test_ranks_that_do_not_divide_a_model(llama: Path) -> None:
    """What cannot be divided evenly is refused with its size, and what to change."""
    with pytest.raises(Unsupported, match=r"--num-shard 3: 4 attention heads cannot be divided evenly over 3 ranks"):
        RankWeights(weights_of(llama), Group(0, 3, "file:unused", 0, 3))


def weights_of(folder: Path) -> DecoderWeights:
    """A checkpoint's weights by its table."""
    return DecoderWeights(read_table(read_json(folder / "config.json"), True), open_weights(folder), torch.float32)


def loaded(weights: DecoderWeights, kit: TorchKit | None = None) -> PagedDecoderRunner:
    """A runner of which nothing has been proven, over a cache of two blocks."""
    kit = kit or TorchKit()
    runner = PagedDecoderRunner(kit, weights, kit.operators, silent)
    runner.use_probe_cache()
    return runner


def row_inputs(*parts: tuple[int, int]) -> list[RowInput]:
    """Rows of one block each, of so many positions before the step and tokens in it."""
    rows = []
    for id, (past, take) in enumerate(parts, 1):
        tokens = [(7 * i + id) % VOCAB for i in range(past + take)]
        rows.append(
            RowInput(
                RowState(Request(id, tuple(tokens), len(tokens), 0, ((id,),), take), tokens, past, ([id],)), past, take, True
            )
        )
    return rows


def test_rows_that_pad_a_step_change_nothing(llama: Path) -> None:
    """Tokens of slot −1 beside a step's own leave its logits as they are, and the null block empty."""
    kit, attention = TorchKit(), KeptAttention()
    kit.provider = attention
    runner = loaded(weights_of(llama), kit)
    runner.run(row_inputs((0, 5), (0, 3)))
    step = build(row_inputs((5, 1), (3, 1)), runner.block_size, torch.device("cpu"))
    assert step.decode is not None
    padded = replace(
        step,
        input_ids=torch.cat((step.input_ids, torch.tensor([9, 0]))),
        positions=torch.cat((step.positions, torch.tensor([0, 0]))),
        slots=torch.cat((step.slots, torch.tensor([-1, -1]))),
        decode=DecodeRows(F.pad(step.decode.tables, (0, 0, 0, 2)), torch.tensor([6, 4, 1, 1]), 6, False),
        masks={},
    )
    with torch.inference_mode():
        alone, beside = runner.forward(step, None), runner.forward(padded, None)
        again = runner.forward(padded, torch.tensor([1]))
    assert torch.allclose(alone, beside[:2], atol=1e-5) and torch.allclose(alone[1:], again, atol=1e-5)
    assert all(not layer.keys[0].any() and not layer.values[0].any() for layer in attention.layers)


class Refusing(TorchOperators):
    """Operators that serve nothing."""

    def refusal(self, dtype: torch.dtype) -> str:
        """Why."""
        return f"not made for {dtype}"


def test_what_does_not_serve_is_passed_over_with_its_reason(llama: Path) -> None:
    """The next operators are used, and the reason is told; without any the table is not run."""
    runner = loaded(weights_of(llama), TorchKit(Refusing(), TorchOperators()))
    assert "not torch: not made for torch.float32" in {kernel.reason for kernel in runner.kernels}
    with pytest.raises(UnsupportedFamily, match="not made for"):
        loaded(weights_of(llama), TorchKit(Refusing()))


class Uncompiled(TorchOperators):
    """Operators whose compiler fails, in a way of its own."""

    name = "fused"

    def self_check(self, table: DecoderTable, dtype: torch.dtype, device: torch.device) -> str:
        """As a kernel does where a header is missing."""
        raise subprocess.CalledProcessError(1, "cc", stderr="Python.h: No such file or directory")


class Wrong(TorchOperators):
    """Operators of which one is wrong."""

    name = "fused"

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def self_check(self, table: DecoderTable, dtype: torch.dtype, device: torch.device) -> str:
        """Against the reference."""
        return operators_disagreement(self, table, dtype, device)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """With its halves swapped."""
        return super().silu_mul(gate_up.roll(gate_up.shape[-1] // 2, -1) if self.wrong == "silu_mul" else gate_up)

    def add_and_norm(self, stream: Tensor, branch: Tensor, scale: float, weight: Tensor, epsilon: float) -> Tensor:
        """Without changing the stream."""
        return super().add_and_norm(stream.clone() if self.wrong == "add_and_norm" else stream, branch, scale, weight, epsilon)

    def rope_and_cache(self, qkv: Tensor, positions: Tensor, slots: Tensor, heads: Heads, cache: PagedLayer) -> Tensor:
        """With a token at its neighbour's slot."""
        return super().rope_and_cache(qkv, positions, slots.roll(1) if self.wrong == "rope_and_cache" else slots, heads, cache)


def test_operators_that_fail_their_self_check_are_passed_over(llama: Path) -> None:
    """Whatever a check raises is a reason, and torch's operators run; correct operators are used."""
    runner = loaded(weights_of(llama), TorchKit(Uncompiled(), TorchOperators()))
    (chosen,) = [kernel for kernel in runner.kernels if kernel.part == "operators"]
    assert chosen.name == "torch" and "not fused: CalledProcessError" in chosen.reason
    assert loaded(weights_of(llama), TorchKit(Wrong(""), TorchOperators())).operators.name == "fused"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("silu_mul", "silu_mul differs"),
        ("add_and_norm", "the sum of add_and_norm differs"),
        ("rope_and_cache", "the keys that rope_and_cache writes differs"),
    ],
)
def test_wrong_operators_are_found(wrong: str, said: str, llama: Path) -> None:
    """The check names the operator whose results are not the reference's."""
    assert said in operators_disagreement(Wrong(wrong), weights_of(llama).table, torch.float32, torch.device("cpu"))


STEPS = [((0, 5), (3, 2)), ((4, 1), (9, 1)), ((4, 1), (3, 6))]
"""Prefill, decode, and both at once, as rows of (past, tokens)."""


class Passing(KeptAttention):
    """Attention that only looks where its tensors lie: without the device's library torch slices nothing there."""

    def attend(self, query: Tensor, cache: PagedLayer, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """The queries themselves."""
        assert isinstance(cache, LayerCache)
        return query.transpose(0, 1) + 0 * cache.values.sum()


@pytest.mark.parametrize("device", ["cuda:0", "xpu:0"])
@pytest.mark.parametrize("parts", STEPS)
def test_a_step_stays_on_its_device(device: str, parts: tuple[tuple[int, int], ...], tmp_path: Path) -> None:
    """Tensors of a step and of the model are on one device, and nothing asks it for a number: there are none in fake tensors."""
    weights, kit = weights_of(save_tiny("qwen3", tmp_path, num_hidden_layers=2)), TorchKit()
    kit.device, kit.provider = torch.device(device), Passing()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        runner = loaded(weights, kit)
        step = build(row_inputs(*parts), runner.block_size, kit.device)
        logits = runner.forward(step, torch.tensor([0, 1], device=device))
    assert logits.device == kit.device and logits.shape == (2, VOCAB)


@pytest.mark.parametrize("parts", STEPS)
@pytest.mark.parametrize("model_type", ["ministral", "qwen2_moe", "gpt_oss"])
def test_a_step_asks_the_device_for_nothing(model_type: str, parts: tuple[tuple[int, int], ...], tmp_path: Path) -> None:
    """With plain torch's attention too, a step runs over tensors that have shapes and no values."""
    weights, kit = weights_of(save_tiny(model_type, tmp_path, num_hidden_layers=2)), TorchKit()
    kit.device = torch.device("meta")
    runner = loaded(weights, kit)
    with torch.inference_mode():
        logits = runner.forward(build(row_inputs(*parts), runner.block_size, kit.device), None)
    assert logits.is_meta and logits.shape == (sum(take for _, take in parts), VOCAB)
