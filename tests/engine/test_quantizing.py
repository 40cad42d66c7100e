"""`tgi quantize`: what its codes lose, and who reads its checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from tests.engine.tiny_configs import TRANSFORMERS_5
from tests.engine.tiny_models import open_cpu, save_tiny, silent
from tgi_core.backend import EMPTY, InvalidModel, OutputOptions, Request, WarmupPlan
from tgi_core.engine.models.build import ModelSource, read_config
from tgi_core.engine.quantization.stored import open_weights
from tgi_core.engine.quantizing.awq import Stored, scale_inputs
from tgi_core.engine.quantizing.gptq import gptq_fields
from tgi_core.engine.quantizing.layerwise import SeenLayer, each_layer
from tgi_core.engine.quantizing.perplexity import perplexity, text_rows
from tgi_core.engine.quantizing.quantize import Report, Text, quantize_model
from tgi_core.engine.quantizing.quantizer import symmetric_quantizer
from tgi_core.engine.quantizing.schemes import Awq, Channels, Gptq, QuantizationScheme
from tgi_core.engine.quantizing.writing import write_checkpoint
from tgi_core.errors import StartupError
from tgi_core.model_files import DEMO

TEXT = Text(rows=24, length=96)
"""The demo model's own."""


def moments_of(inputs: torch.Tensor) -> torch.Tensor:
    """Sums of x·xᵀ."""
    return inputs.T @ inputs


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("ordered", [False, True])
def test_gptq_loses_less_than_rounding(bits: int, ordered: bool) -> None:
    """In the products with correlated inputs, which it was shown."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(400, 12, generator=generator) @ torch.randn(12, 96, generator=generator)
    inputs += 0.1 * torch.randn(400, 96, generator=generator)
    inputs[:, 7] = 0
    matrix = torch.randn(48, 96, generator=generator)
    lost = []
    nearest = symmetric_quantizer(matrix, bits, 32)
    for fields, quantizer in (
        (nearest.fields(matrix), nearest),
        gptq_fields(matrix, moments_of(inputs), bits, 32, damping=0.01, ordered=ordered),
    ):
        assert fields.dtype is torch.uint8 and int(fields.max()) < 2**bits
        lost.append(float((inputs @ (quantizer.matrix(fields) - matrix).T).square().mean()))
    assert lost[1] < 0.6 * lost[0]


def quantized(to: Path, scheme: QuantizationScheme) -> Report:
    """The demo model, quantized."""
    return quantize_model(DEMO, to, scheme, TEXT, silent)


def own_perplexity(folder: Path, rows: torch.Tensor) -> float:
    """As this server's CPU backend computes it, from the logprobs of prompts."""
    length = rows.shape[1]
    session, _ = open_cpu(folder, WarmupPlan(max_rows=1, max_row_tokens=length + 16), dtype="float32")
    total = 0.0
    for number, row in enumerate(rows.tolist(), 1):
        blocks = tuple(range(1, -(-(length + 1) // session.capabilities().block_sizes[0]) + 1))
        request = Request(number, tuple(row), length, 0, (blocks,), length, want=OutputOptions(prompt_logprobs=True))
        step = session.prefill((request,), EMPTY, ())
        total -= sum(value for value in session.rows(step).rows[0].prompt_logprobs if value is not None)
        session.clear(None)
    session.close()
    return math.exp(total / (len(rows) * (length - 1)))


@pytest.fixture(scope="module")
def rows() -> torch.Tensor:
    """Text that the demo model knows."""
    from tgi_core.tokenizer import Tokenizer

    text = " ".join(f"What is the capital of {name}? The capital of {name} is" for name in ("France", "Italy", "Japan", "Egypt"))
    return text_rows(list(Tokenizer.load(DEMO).encode(text * 6).ids), 4, 80, "text")


def test_what_is_lost(rows: torch.Tensor, tmp_path: Path) -> None:
    """Perplexity: int8 within 0.5 %, 4 bits by GPTQ within 5 %, and with 3 bits less than by rounding; the report says so too. It is
    the same in transformers and in this server."""
    forms: dict[str, QuantizationScheme] = {
        "int8": Channels("int8"),
        "gptq4": Gptq(4, 64, calibrated=True, ordered=True),
        "awq4": Awq(4, 64),
        "gptq3": Gptq(3, 64, calibrated=True),
        "rtn3": Gptq(3, 64, calibrated=False),
    }
    reports = {name: quantized(tmp_path / name, scheme) for name, scheme in forms.items()}
    ratio = {name: report.perplexity[1] / report.perplexity[0] for name, report in reports.items()}
    assert ratio["int8"] < 1.005 and ratio["gptq4"] < 1.05 and ratio["awq4"] < 1.05 and ratio["gptq3"] < ratio["rtn3"]
    assert reports["gptq4"].bytes[1] < 0.45 * reports["gptq4"].bytes[0] and not reports["gptq4"].left
    plain = own_perplexity(DEMO, rows)
    assert own_perplexity(tmp_path / "int8", rows) < 1.005 * plain and own_perplexity(tmp_path / "gptq4", rows) < 1.05 * plain
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "int8", dtype=torch.float32)
    assert perplexity(theirs, rows) == pytest.approx(own_perplexity(tmp_path / "int8", rows), rel=1e-4)


class Unscaled(Awq):
    """AWQ's files without AWQ."""

    def prepare(self, seen: SeenLayer, stored: Stored) -> None:
        """Scale nothing."""


def logits(folder: Path) -> torch.Tensor:
    """Of 64 tokens."""
    model = ModelSource(folder, read_config(folder), torch.float32).build(silent)
    with torch.inference_mode():
        found: torch.Tensor = model(torch.arange(64).unsqueeze(0) * 7 % 500).logits
    return found


def with_outliers(folder: Path) -> Path:
    """The model in that folder, with a few channels of its norms' outputs far larger than the others."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if "layernorm" in name:
            tensor[3::16] *= 20
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", ["llama", "phi", "gemma2", "stablelm"])
def test_awq_scales_without_a_change(kind: str, tmp_path: Path) -> None:
    """Layers compute what they did, whether a norm serves attention and MLP, has a bias, or adds 1 to its weight."""
    folder = with_outliers(save_tiny(kind, tmp_path / "whole", num_hidden_layers=2))
    model = ModelSource(folder, read_config(folder), torch.float32).build(silent)
    before = {name: parameter.data.clone() for name, parameter in model.named_parameters()}
    linears = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}

    def prepare(seen: SeenLayer) -> None:
        scale_inputs(seen, lambda matrix: (matrix * 4).round() / 4, lambda parameter: parameter.data)

    each_layer(model, torch.arange(64).view(2, 32), linears, prepare, lambda *linear: None, lambda done, total: None)
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter.data, before[name])}
    assert any("down_proj" in name or "fc1" in name for name in changed)
    assert any("layernorm" in name for name in changed) is (kind != "gemma2")
    with torch.inference_mode():
        assert torch.allclose(model(torch.arange(64).unsqueeze(0) * 7 % 500).logits, logits(folder), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["llama", "phi", "stablelm"])
def test_awq_loses_less_than_rounding(kind: str, tmp_path: Path) -> None:
    """Where some inputs are large."""
    folder = with_outliers(save_tiny(kind, tmp_path / "whole", num_hidden_layers=2))
    plain, lost = logits(folder), []
    for scheme in (Awq(4, 32), Unscaled(4, 32)):
        to = tmp_path / type(scheme).__name__
        quantize_model(folder, to, scheme, Text(16, 32), silent)
        lost.append(float((logits(to) - plain).square().mean()))
    assert lost[0] < 0.92 * lost[1]


@pytest.mark.skipif(not TRANSFORMERS_5, reason="transformers 4 cannot dequantize what its loader has read")
@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_transformers_reads_the_same_numbers(kind: str, tmp_path: Path) -> None:
    """Its compressed-tensors loader and ours agree on every weight."""
    assert quantized(tmp_path / "out", Channels(kind)).layers == 28
    whole = CompressedTensorsConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32, quantization_config=whole)
    theirs = model.state_dict()
    stored = open_weights(tmp_path / "out")
    for name, weight in stored.by_name.items():
        assert torch.equal(stored.weight(weight, torch.float32).dequantize(), theirs[name].float()), name


def test_large_checkpoints_are_split(tmp_path: Path) -> None:
    """Into files with an index, which loaders read as one."""
    stored = open_weights(DEMO)
    config = json.loads((DEMO / "config.json").read_text())
    write_checkpoint(DEMO, tmp_path, stored, {}, config, lambda done, total: None, file_bytes=1 << 20)
    files = sorted(file.name for file in tmp_path.glob("*.safetensors"))
    assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert (tmp_path / "tokenizer.json").exists() and (tmp_path / "generation_config.json").exists()
    copied, whole = open_weights(tmp_path), load_file(DEMO / "model.safetensors")
    assert copied.by_name.keys() == whole.keys()
    for name, weight in copied.by_name.items():
        assert torch.equal(copied.tensor(weight), whole[name])


def test_layers_that_do_not_fit_stay(tmp_path: Path) -> None:
    """Those whose inputs are not whole groups are named; if none fits, that is an error."""
    folder = save_tiny("llama", tmp_path / "whole")
    report = quantize_model(folder, tmp_path / "out", Gptq(4, 64, calibrated=False), Text(4, 16), silent)
    assert set(report.left) == {f"model.layers.{index}.mlp.down_proj" for index in range(4)}
    assert "its 96 inputs are not whole groups of 64" in report.left["model.layers.0.mlp.down_proj"]
    open_cpu(tmp_path / "out", dtype="float32")
    with pytest.raises(InvalidModel, match="no layer that can be quantized"):
        quantize_model(folder, tmp_path / "none", Gptq(4, 80, calibrated=False), Text(4, 16), silent)
    assert not (tmp_path / "none").exists()


def refused(directory: Path, to: Path, text: Text = TEXT, **scheme: Any) -> str:
    """What is said instead of a checkpoint."""
    with pytest.raises((StartupError, InvalidModel)) as caught:
        quantize_model(directory, to, Gptq(**({"bits": 4, "size": 64, "calibrated": False} | scheme)), text, silent)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_refusals(tmp_path: Path) -> None:
    """One line each, and nothing written."""
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    assert f"{full}: is there already" in refused(DEMO, full)
    assert "--bits 5" in refused(DEMO, tmp_path / "out", bits=5)
    with pytest.raises(StartupError, match="--bits 3: awq makes 4 bits"):
        Awq(3, 64)
    assert "--group-size 0" in refused(DEMO, tmp_path / "out", size=0)
    assert "text.txt: has 40 tokens" in refused(DEMO, tmp_path / "out", text=Text(8, 32, list(range(40)), "text.txt"))
    folder = save_tiny("llama", tmp_path / "whole")
    quantize_model(folder, tmp_path / "once", Gptq(4, 32, calibrated=False), Text(4, 16), silent)
    assert "is quantized already" in refused(tmp_path / "once", tmp_path / "twice")
    assert not (tmp_path / "out").exists() and not (tmp_path / "twice").exists()
