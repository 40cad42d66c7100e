"""Launches of a decoder's step: how many, which, and what compiles when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from tests.engine.ahead.late import LateQueue
from tests.engine.test_table_decoder import row_inputs
from tests.engine.tiny_models import save_tiny, silent
from tests.triton.noting import NotingDriver
from tests.triton.test_launches import TILES
from tgi_core.backend import Group, OutputOptions, Request, Sampling
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.ahead.processing import LogitsProcessing
from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.all_reduce import GroupAllReduce
from tgi_core.engine.attention.cache import PagedCache
from tgi_core.engine.attention.metadata import build
from tgi_core.engine.decoder.forward import DecoderForward
from tgi_core.engine.decoder.loading import LoadedDecoder, LoadedExperts, attention_layers, load_decoder
from tgi_core.engine.decoder.partition import RankWeights, with_all_reduce
from tgi_core.engine.decoder.table import read_table
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device_queue import Work
from tgi_core.engine.paged_decoder import prepare
from tgi_core.engine.quantization.linear import Linears
from tgi_core.engine.quantization.stored import open_weights
from tgi_core.engine.quantization.torch_linear import TorchLinears
from tgi_core.engine.quantization.weight import Scaled
from tgi_core.engine.triton.linear import TritonLinears
from tgi_core.engine.triton.operators import TritonOperators
from tgi_core.engine.triton.provider import TritonAttention
from tgi_core.engine.triton.rounded_linear import TritonRoundedLinears
from tgi_core.engine.triton.sampling import TritonSampler
from tgi_core.model_files import read_json

CPU = torch.device("cpu")
PRODUCTS = ("linear", "mm", "addmm")


def weights_of(folder: Path) -> DecoderWeights:
    """A model in bfloat16."""
    return DecoderWeights(read_table(read_json(folder / "config.json"), True), open_weights(folder), torch.bfloat16)


def forward_of(folder: Path) -> DecoderForward:
    """A model, wholly by Triton's kernels but for its products."""
    return forward_over(load_decoder(weights_of(folder), Linears((TorchLinears(),), CPU), silent))


def forward_over(decoder: LoadedDecoder) -> DecoderForward:
    """The same of a loaded one."""
    provider = TritonAttention(TILES, 4, 1)
    shapes = tuple(layer.shape for layer in attention_layers(decoder.table))
    cache = PagedCache(shapes, 2, 16, torch.bfloat16, CPU, provider.new_layer)
    return DecoderForward(decoder, TritonOperators(), provider, cache.layers)


def test_five_launches_a_layer(driver: NotingDriver, tmp_path: Path) -> None:
    """Beside its four products a layer takes five kernels in a decode step, and choosing tokens takes two; no others for more rows."""
    forward = forward_of(save_tiny("qwen3", tmp_path, num_hidden_layers=2))
    sampler = TritonSampler()

    def step(*parts: tuple[int, int]) -> None:
        with torch.inference_mode():
            logits = forward(build(row_inputs(*parts), 16, CPU), None)
            sampler.choose(logits, torch.zeros(len(logits), dtype=torch.float64), torch.zeros(len(logits)))

    step((4, 1))
    layer = ["rope_and_cache_kernel", "decode_kernel", "rms_norm_kernel", "silu_mul_kernel", "rms_norm_kernel"]
    expected = ["rms_norm_kernel", *layer, *layer, "summarize_kernel", "choose_kernel"]
    assert [name for name, _ in driver.launched] == expected
    before = len(driver.loaded)
    for parts in (((9, 1), (3, 1)), ((1, 1),) * 5, ((15, 1),) * 16):
        step(*parts)
    assert driver.loaded[before:] == []


def test_two_launches_more_on_a_rank(driver: NotingDriver, tmp_path: Path) -> None:
    """A rank of two takes two all-reduces more in a layer, which sum in place, and asks the device for nothing."""
    whole = weights_of(save_tiny("qwen3", tmp_path, num_hidden_layers=2))
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        assert dist.group.WORLD is not None
        decoder = load_decoder(RankWeights(whole, Group(1, 2, "file:unused", 1, 2)), Linears((TorchLinears(),), CPU), silent)
        forward, noted = (
            forward_over(with_all_reduce(decoder, GroupAllReduce(dist.group.WORLD.group_name, in_place=True))),
            list[str](),
        )
        with torch.inference_mode():
            metadata = build(row_inputs((4, 1)), 16, CPU)
            with Operators(noted):
                forward(metadata, None)
    finally:
        dist.destroy_process_group()
    assert len(driver.launched) == 1 + 2 * 5
    products = [name for name in noted if name in PRODUCTS]
    assert len(products) == 2 * 4 + 1 and noted.count("all_reduce_") == 2 * 2
    assert set(noted) <= {*PRODUCTS, "embedding", "all_reduce_", "wait_tensor"}, noted


@pytest.mark.parametrize("model_type", ["mixtral", "qwen2_moe", "gpt_oss"])
def test_twelve_launches_of_experts(model_type: str, driver: NotingDriver, tmp_path: Path) -> None:
    """With experts, shared ones and a router among them, a layer takes eleven launches in a decode step, three of them products; nothing
    asks the device for a number, and no number of tokens compiles another kernel."""
    folder = save_tiny(model_type, tmp_path, num_hidden_layers=2, **({"layer_types": KINDS} if model_type == "gpt_oss" else {}))
    forward = forward_of(folder)
    mlp = forward.decoder.layers[0].mlp
    assert isinstance(mlp, LoadedExperts)
    forward.operators.prepare_experts(mlp.experts)

    def step(*parts: tuple[int, int]) -> list[str]:
        metadata, noted = build(row_inputs(*parts), 16, CPU), list[str]()
        driver.launched.clear()
        with torch.inference_mode(), Operators(noted):
            forward(metadata, None)
        return noted

    noted = step((4, 1))
    layer = ["rope_and_cache_kernel", "decode_kernel", "rms_norm_kernel", "route_kernel", "sort_kernel"]
    layer += ["grouped_gemm_kernel", "grouped_gemm_kernel", "rms_norm_kernel"]
    assert [name for name, _ in driver.launched] == ["rms_norm_kernel", *layer, *layer]
    products = [name for name in noted if name in PRODUCTS]
    assert len(products) == 2 * 3 + 1 and len(noted) == len(products) + 1, noted  # and the embedding
    before = len(driver.loaded)
    for parts in (((9, 1), (3, 1)), ((1, 1),) * 5, ((15, 1),) * 16, ((15, 1),) * 200, ((15, 1),) * 600):
        assert not set(step(*parts)) & {"_local_scalar_dense", "nonzero"}
    assert driver.loaded[before:] == []


LATENT = [
    ("deepseek_v3", {"first_k_dense_replace": 1}, 0),
    ("deepseek_v2", {"first_k_dense_replace": 1, "q_lora_rank": None}, 0),
    ("deepseek_v3", {"first_k_dense_replace": 1}, 129),
]


@pytest.mark.parametrize(("model_type", "fields", "more"), LATENT)
def test_twelve_launches_of_latent_attention(
    model_type: str, fields: dict[str, object], more: int, driver: NotingDriver, tmp_path: Path
) -> None:
    """With latent attention, a dense layer takes ten launches in a decode step, one with experts twelve, four and two of them products.
    Beyond 128 tokens, the vendor's products from latents make it two more. Nothing asks the device for a number."""
    forward = forward_of(save_tiny(model_type, tmp_path, num_hidden_layers=2, **fields))
    dense, sparse = (layer.mlp for layer in forward.decoder.layers)
    assert isinstance(sparse, LoadedExperts) and not isinstance(dense, LoadedExperts)
    prepare(forward.operators, forward.decoder)

    def step(*parts: tuple[int, int]) -> list[str]:
        metadata, noted = build(row_inputs(*parts), 16, CPU), list[str]()
        driver.launched.clear()
        with torch.inference_mode(), Operators(noted):
            forward(metadata, None)
        return noted

    noted = step(*(((4, 1),) * (more or 1)))
    attention = ["latent_norm_kernel" if more else "expand_kernel", "latent_rope_and_cache_kernel", "decode_kernel"]
    layers = [[*attention, "rms_norm_kernel", "silu_mul_kernel", "rms_norm_kernel"]]
    experts = ["wide_linear_kernel", "route_kernel", "sort_kernel", "grouped_gemm_kernel", "grouped_gemm_kernel"]
    layers += [[*attention, "rms_norm_kernel", *experts, "rms_norm_kernel"]]
    assert [name for name, _ in driver.launched] == ["rms_norm_kernel", *layers[0], *layers[1]]
    apart = 2 if more else 0
    products = [name for name in noted if name in PRODUCTS]
    assert len(products) == (4 + apart) + (2 + apart) + 1 and len(noted) == len(products) + 1, noted  # and the embedding
    assert [len(layer) + count + apart for layer, count in zip(layers, (4, 2), strict=True)] == [10 + apart, 12 + apart]
    before = len(driver.loaded)
    for rows in (((9, 1), (3, 1)), ((1, 1),) * 5, ((15, 1),) * 16, ((15, 1),) * 200, ((15, 1),) * 600):
        assert not set(step(*rows)) & {"_local_scalar_dense", "nonzero"}
    assert driver.loaded[before:] == []


KINDS = ["full_attention", "sliding_attention"]


class CountingQueue(LateQueue):
    """A device that does work at once, and counts torch's operators in it, besides views and allocations."""

    def __init__(self) -> None:
        super().__init__(eager=True)
        self.operators: list[str] = []

    def run(self, work: Work) -> None:
        """Count while it runs."""
        with Operators(self.operators):
            super().run(work)


class Operators(TorchDispatchMode):
    """Notes operators that run something on a device."""

    def __init__(self, noted: list[str]) -> None:
        super().__init__()
        self._noted = noted

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = func.overloadpacket.__name__
        if not func.is_view and not name.startswith(("empty", "new_empty")):
            self._noted.append(name)
        return func(*args, **(kwargs or {}))


EVERYTHING = Sampling(
    do_sample=True,
    top_k=9,
    top_p=0.9,
    min_p=0.1,
    typical_p=0.9,
    repetition_penalty=1.2,
    frequency_penalty=0.1,
    logit_bias=((3, 1.0),),
)


def test_twelve_operators_at_most(driver: NotingDriver) -> None:
    """Sampling from processed logits takes at most twelve operators and kernels, whatever rows ask for, with the copy of their inputs;
    other numbers of rows need no other kernels."""
    kinds = [
        (EVERYTHING, OutputOptions(top_n=3)),
        (replace(EVERYTHING, do_sample=False), OutputOptions()),
        (Sampling(), OutputOptions()),
    ]
    queue, vocab = CountingQueue(), 1000
    slots = RowSlots(64, 4, vocab, lambda row: False, lambda row: True)
    processing = LogitsProcessing(queue, TritonSampler(), slots, torch.zeros(66, dtype=torch.int64), vocab, CPU)
    logits, rows = torch.zeros(48, vocab, dtype=torch.bfloat16), []
    for id in range(1, 49):
        sampling, want = kinds[id % 3]
        request = Request(id, (1, 2, 3), 2, 0, ((id,),), 3, sampling, want, masked=True)
        rows.append(RowState(request, [1, 2, 3], 3, ([id],)))
    loaded: int | None = None
    for count in (3, 1, 2, 16, 17, 48, 47):
        queue.operators.clear()
        driver.launched.clear()
        chosen = rows[:count]
        taken = np.array(slots.take(chosen, set(range(1, 49))), np.int64)
        inputs = [RowInput(row, 2, 1, yields=True) for row in chosen]
        processing.enqueue(lambda: logits, inputs, range(count), taken, bytes(128 * count))
        slots.counted[taken] = 3
        launched = [name for name, _ in driver.launched]
        assert 1 + len(queue.operators) + len(launched) <= 12, (queue.operators, launched)
        loaded = loaded or len(driver.loaded)
    assert len(driver.loaded) == loaded


def test_rounded_inputs_compile_when_weights_are_loaded(driver: NotingDriver) -> None:
    """Inputs of eight bits take one kernel more than the product; nothing is compiled for another number of rows."""
    codes = (torch.arange(64 * 256).view(64, 256) % 251 - 125).to(torch.int8)
    for weight in (
        Scaled((codes, torch.ones(64, 1)), torch.bfloat16),
        Scaled((codes.to(torch.float8_e4m3fn), torch.ones(64, 2)), torch.bfloat16),
    ):
        linear = TritonRoundedLinears(torch.float8_e4m3fn).load(weight, None)
        before = len(driver.loaded)
        for rows in (1, 2, 16, 17, 100, 129, 500):
            driver.launched.clear()
            linear(torch.zeros(rows, 256, dtype=torch.bfloat16))
            assert [name for name, _ in driver.launched] == ["round_rows_kernel", "scaled_gemm_kernel"]
        assert driver.loaded[before:] == []


def test_quantized_weights_compile_when_they_are_loaded(driver: NotingDriver) -> None:
    """A product takes one kernel, or with many rows one before the vendor's; nothing is compiled for another number of rows."""
    weight = Scaled((torch.zeros(64, 128, dtype=torch.int8), torch.ones(64, 4)), torch.bfloat16)
    linear = TritonLinears().load(weight, None)
    before = len(driver.loaded)
    for rows in (1, 2, 16, 17, 33, 100, 128, 129, 500):
        driver.launched.clear()
        linear(torch.zeros(rows, 128, dtype=torch.bfloat16))
        assert [name for name, _ in driver.launched] == ["gemm_kernel" if rows <= 128 else "dequantize_kernel"]
    assert driver.loaded[before:] == []
