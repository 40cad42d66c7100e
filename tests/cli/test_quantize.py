"""--quantize: what it says about a checkpoint has to be true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.process import run, served
from tgi_core.cli.open_options import open_options
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.model_files import DEMO

GPTQ = {"bits": 4, "group_size": 128, "desc_act": False}


def model(folder: Path, **files: Any) -> Path:
    """A directory with these JSON files."""
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


@pytest.mark.parametrize(
    ("asked", "files"),
    [
        (None, {"config": {}}),
        (None, {"config": {"quantization_config": {"quant_method": "nibbles"}}}),
        ("gptq", {"config": {"quantization_config": GPTQ | {"quant_method": "gptq"}}}),
        ("gptq", {"config": {}, "quantize_config": GPTQ}),
        ("gptq", {"config": {"quantization_config": {"quant_method": "awq"}}}),
        ("gptq", {"config": {"quantization_config": GPTQ | {"quant_method": "gptq", "is_marlin_format": True}}}),
        ("marlin", {"config": {"quantization_config": GPTQ | {"quant_method": "gptq", "checkpoint_format": "marlin"}}}),
        ("eetq", {"config": {"quantization_config": {"quant_method": "eetq"}}}),
        ("exl2", {"config": {"quantization_config": {"quant_method": "exl2"}}}),
        ("marlin", {"config": {"quantization_config": GPTQ | {"quant_method": "gptq"}}}),
        ("awq", {"config": {}, "quant_config": {"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM"}}),
        ("awq", {"config": {"quantization_config": {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"}}}),
        ("fp8", {"config": {"quantization_config": {"quant_method": "fbgemm_fp8"}}}),
        ("bitsandbytes-nf4", {"config": {"quantization_config": {"quant_method": "bitsandbytes"}}}),
        ("compressed-tensors", {"config": {"compression_config": {"quant_method": "compressed-tensors"}}}),
    ],
)
def test_what_agrees_with_the_files(asked: str | None, files: dict[str, Any], tmp_path: Path) -> None:
    """Names of TGI for what the files say, wherever they say it."""
    assert open_options(model(tmp_path, **files), Settings(quantize=asked)).model == str(tmp_path)


@pytest.mark.parametrize(
    ("asked", "files", "told"),
    [
        (
            "gptq",
            {"config": {}},
            "--quantize gptq: {} holds no quantized weights, and gptq cannot be made at load; use one of int8, int4, fp8",
        ),
        ("exl2", {}, "exl2 cannot be made at load"),
        ("int8", {"config": {"quantization_config": {"quant_method": "fp8"}}}, "says that the weights are quantized by 'fp8'"),
        (
            "awq",
            {"config": {"quantization_config": {"quant_method": "fp8"}}},
            "{}/config.json says that the weights are quantized by 'fp8'",
        ),
        (
            "eetq",
            {"config": {}, "quantize_config": GPTQ},
            "{}/quantize_config.json says that the weights are quantized by 'gptq'",
        ),
        ("gptq", {"config": {}, "quantize_config": [1]}, "{}/quantize_config.json: contains list"),
    ],
)
def test_what_does_not(asked: str, files: dict[str, Any], told: str, tmp_path: Path) -> None:
    """One line that names the flag and the file."""
    with pytest.raises(StartupError) as caught:
        open_options(model(tmp_path, **files), Settings(quantize=asked))
    assert told.format(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("int8", "int8"),
        ("int4", "int4"),
        ("eetq", "int8"),
        ("bitsandbytes", "int8"),
        ("fp8", "fp8"),
        ("bitsandbytes-nf4", "int4"),
        (None, ""),
    ],
)
def test_plain_weights_are_rounded(asked: str | None, wanted: str, tmp_path: Path) -> None:
    """TGI's names for integers of 8 bits mean int8."""
    assert open_options(model(tmp_path, config={}), Settings(quantize=asked)).quantize == wanted


@pytest.mark.parametrize("way", [("--in-process",), ()])
def test_a_backend_that_cannot(way: tuple[str, ...]) -> None:
    """One line, in the server's process and in the shard's."""
    result = run("serve", "--hostname", "127.0.0.1", "--port", "0", "--backend", "reference", "--quantize", "int8", *way)
    assert result.returncode == 1 and "backend reference: --quantize: does not quantize weights at load" in result.stderr


def test_a_model_that_tgi_quantized_is_served(tmp_path: Path) -> None:
    """`tgi quantize`, then `tgi serve`; the report is the only line on standard output."""
    small = ("--rows", "4", "--length", "32", "--group-size", "64")
    made = run("quantize", str(DEMO), str(tmp_path / "ours"), "--method", "rtn", *small)
    assert made.returncode == 0, made.stderr
    report = json.loads(made.stdout)
    assert report["layers"] == 28 and report["left"] == {} and report["perplexity_after"] > 1
    with served(str(tmp_path / "ours"), "--quantize", "gptq", "--backend", "cpu") as server:
        answer = httpx.post(f"{server.url}/generate", json={"inputs": "What is the capital of France?"}, timeout=60).json()
    assert "Paris" in answer["generated_text"]


def test_only_options_that_it_reads_are_offered() -> None:
    """Adapters and draft models are no part of a quantized checkpoint."""
    helped = run("quantize", "--help").stdout
    assert "--revision" in helped and "--huggingface-hub-cache" in helped
    assert "--lora-adapters" not in helped and "--draft-model" not in helped


def test_a_calibration_file(tmp_path: Path) -> None:
    """Its text is what the perplexity is measured on; one that cannot be read is one line."""
    (tmp_path / "text").write_text("The capital of France is Paris. " * 40)
    text = ("--length", "32", "--calibration", str(tmp_path / "text"))
    made = run("quantize", str(DEMO), str(tmp_path / "out"), "--group-size", "64", *text)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "out" / "tokenizer.json").exists()
    lost = run("quantize", str(DEMO), str(tmp_path / "other"), "--calibration", str(tmp_path / "none"))
    assert lost.returncode == 1
    assert lost.stderr.splitlines()[-1].startswith(f"tgi: error: --calibration {tmp_path / 'none'}: cannot be read")
