"""Compiled models: found again in --compile-cache, compared where an operator brings one, and named where something differs."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from tgi_backend_neuron.artefact import CONFIG
from transformers import AutoModelForCausalLM

from tests.engine.tiny_models import save_tiny
from tests.neuron.opened import PLAN, open_neuron
from tests.neuron.test_slots import generated, request, run
from tgi_core.backend import EMPTY, InvalidModel, Unsupported, WarmupPlan

pytestmark = pytest.mark.usefixtures("machine")


def test_progress_and_plan(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What will be compiled is said before it is, and counted."""
    seen: list[tuple[str, int, int, str]] = []
    with caplog.at_level(logging.INFO, "tgi_core.engine"):
        _, capacity = open_neuron(llama, progress=lambda *each: seen.append(each))
    assert "will compile 2 programs: a prompt of up to 48 tokens, and a token for each of 3 slots" in caplog.text
    assert [each for each in seen if each[0] == "compiling"] == [("compiling", done, 2, "step") for done in (0, 2)]
    assert capacity.compiles == 2


def test_second_start(llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A second start compiles nothing; one with other limits says which; the cache holds no weights."""
    caplog.set_level(logging.INFO, "tgi_core.engine")
    cache = str(tmp_path / "cache")
    assert open_neuron(llama, compile_cache=cache)[1].compiles == 2
    assert open_neuron(llama, compile_cache=cache)[1].compiles == 0 and "2 programs of an earlier start" in caplog.text
    more = WarmupPlan(max_rows=2, max_row_tokens=48)
    assert open_neuron(llama, more, compile_cache=cache)[1].compiles == 2
    assert "changed: batch_size (was 3, is 2), max_batch_size (was 3, is 2)" in caplog.text
    assert not list((tmp_path / "cache").glob("**/*.safetensors"))


def test_another_compiler(llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of another compiler are not used; the versions are named."""
    caplog.set_level(logging.INFO, "tgi_core.engine")
    cache = str(tmp_path / "cache")
    open_neuron(llama, compile_cache=cache)
    from tests.neuron.standin import make_packages

    monkeypatch.syspath_prepend(str(make_packages(tmp_path / "newer", {"neuronx-cc": "2.22.1.0"})))
    assert open_neuron(llama, compile_cache=cache)[1].compiles == 2
    assert "neuronxcc_version (was 2.21.33363.0, is 2.22.1.0)" in caplog.text


def test_weights_are_not_cached(llama: Path, tmp_path: Path) -> None:
    """A fine-tuned twin uses the programs of the first, and its own weights."""
    twin = tmp_path / "twin"
    whole = AutoModelForCausalLM.from_pretrained(llama)
    with torch.no_grad():
        for weight in whole.parameters():
            weight.mul_(-1.5)
    whole.save_pretrained(twin)
    cache = str(tmp_path / "cache")
    open_neuron(llama, compile_cache=cache)
    session, capacity = open_neuron(twin, compile_cache=cache)
    step = session.prefill((request(1, (5, 6, 7), 1),), EMPTY, ())
    assert capacity.compiles == 0 and run(session, step)[1].tokens == tuple(generated(twin, (5, 6, 7), 1))
    assert generated(twin, (5, 6, 7), 1) != generated(llama, (5, 6, 7), 1)


@pytest.fixture
def compiled(llama: Path, tmp_path: Path) -> Path:
    """A directory as `optimum-cli export neuron` leaves it, with logits."""
    from optimum.neuron import NeuronModelForCausalLM

    config = NeuronModelForCausalLM.get_neuron_config(llama, batch_size=4, sequence_length=64, tensor_parallel_size=2)
    config.on_device_sampling = False
    NeuronModelForCausalLM.export(str(llama), config).save_pretrained(str(tmp_path / "compiled"))
    return tmp_path / "compiled"


def test_a_compiled_model(compiled: Path, llama: Path) -> None:
    """It is loaded as it is, with its slots and their length; the plan's limits may be smaller."""
    session, capacity = open_neuron(compiled, PLAN, dtype="auto")
    (group,) = capacity.groups
    assert (group.num_blocks, group.block_size, capacity.max_rows, capacity.compiles) == (4, 64, 3, 0)
    step = session.prefill((request(1, (5, 6, 7), 4),), EMPTY, ())
    assert run(session, step)[1].tokens == tuple(generated(llama, (5, 6, 7), 1))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("on_device_sampling", True, "on_device_sampling is True, not False"),
        ("neuronxcc_version", "2.19.8089.0+8ab9f450", "neuronxcc_version is 2.19.8089.0, not 2.21.33363.0"),
        ("optimum_neuron_version", "0.4.4", "optimum_neuron_version is 0.4.4, not 0.4.5"),
        ("target", "trn2", "target is trn2, not trn1"),
        ("max_context_length", 32, "max_context_length is 32, not 64"),
        ("continuous_batching", False, "continuous_batching is False, not True"),
        ("speculation_length", 4, "speculation_length is 4, not 0"),
        ("local_ranks_size", 1, "local_ranks_size is 1, not 2"),
    ],
)
def test_a_model_compiled_for_something_else(compiled: Path, field: str, value: object, message: str) -> None:
    """Refused when it is opened, with the field and both values."""
    edit(compiled, **{field: value})
    with pytest.raises(Unsupported, match=CONFIG) as raised:
        open_neuron(compiled, dtype="auto")
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_another_shape(compiled: Path) -> None:
    """More rows or longer ones than it was compiled for, and another dtype or number of cores, are named by field."""
    with pytest.raises(Unsupported, match="batch_size is 4, not 8"):
        open_neuron(compiled, WarmupPlan(max_rows=8, max_row_tokens=64), dtype="auto")
    with pytest.raises(Unsupported, match="sequence_length is 64, not 96"):
        open_neuron(compiled, WarmupPlan(max_rows=4, max_row_tokens=96), dtype="auto")
    with pytest.raises(Unsupported, match="torch_dtype is float32, not bfloat16"):
        open_neuron(compiled, dtype="bfloat16")


def test_damaged(compiled: Path, llama: Path, tmp_path: Path) -> None:
    """What is missing or cannot be read is named with its file."""
    (compiled / "model.pt").unlink()
    with pytest.raises(InvalidModel, match=r"optimum-neuron cannot load it: .*model\.pt"):
        open_neuron(compiled, dtype="auto")
    edit(compiled, tp_degree=None)
    with pytest.raises(InvalidModel, match=f"{CONFIG}: tp_degree is missing"):
        open_neuron(compiled, dtype="auto")
    (compiled / CONFIG).write_text("{")
    with pytest.raises(InvalidModel, match=f"{CONFIG}: invalid JSON"):
        open_neuron(compiled, dtype="auto")


def test_other_models(llama: Path, tmp_path: Path) -> None:
    """A type that optimum-neuron does not run is refused with those that it does; so is a quantized checkpoint."""
    with pytest.raises(InvalidModel, match=r"optimum-neuron runs no 'gpt2'; it runs granite, llama"):
        open_neuron(save_tiny("gpt2", tmp_path / "gpt2"))
    quantized = shutil.copytree(llama, tmp_path / "quantized")
    config = json.loads((quantized / "config.json").read_text()) | {"quantization_config": {"quant_method": "gptq"}}
    (quantized / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidModel, match="no quantized checkpoints"):
        open_neuron(Path(quantized))


def edit(model: Path, **fields: object) -> None:
    """Change fields of neuron_config.json."""
    file = model / CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
