"""optimum-neuron's own host code and model definitions, on the CPU: wrapper, routing, padding, masks and cache are the released ones."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import torch
from tgi_backend_neuron import discovery, opening

from tests.neuron.opened import PLAN, open_neuron
from tests.neuron.test_slots import Traffic, generated, request, run
from tgi_core.backend import EMPTY, InvalidModel, Unsupported, WarmupPlan

try:
    RELEASE = version("optimum-neuron")
except PackageNotFoundError:
    pytest.skip("optimum-neuron is in .venv-neuron: make test-neuron", allow_module_level=True)

from tests.neuron.real import vendor
from tests.neuron.standin import LEGACY, make_machine, make_packages

pytestmark = pytest.mark.filterwarnings("ignore")
vendor.install()


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One core of an Inf2 instance, for the plugin by files and for optimum-neuron by its functions; compiled graphs live in memory."""
    monkeypatch.setattr(discovery, "ROOT", make_machine(tmp_path / "machine", "inf2.xlarge"))
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "0")
    others = {name: found for name, found in LEGACY.items() if name != "optimum-neuron"}
    monkeypatch.syspath_prepend(str(make_packages(tmp_path / "site", others)))
    opening.check_free.cache_clear()
    from optimum.neuron.utils import instance, neuron_device_memory, system

    monkeypatch.setattr(neuron_device_memory, "SYSFS_NEURON_BASE", tmp_path / "machine/sys/devices/virtual/neuron_device")

    for module in (instance, system):
        monkeypatch.setattr(module, "get_neuron_major", lambda: 250)
        monkeypatch.setattr(module, "get_instance_name", lambda: "inf2.xlarge")
    monkeypatch.setattr(system, "get_neuron_devices_count", lambda: 1)
    system.cores_per_device.cache_clear()
    instance.current_instance_type.cache_clear()
    graphs: dict[str, Any] = {}

    def save(traced: Any, file: str) -> None:
        Path(file).write_text("compiled")
        graphs[Path(file).read_text() + str(len(graphs))] = traced

    monkeypatch.setattr(torch.jit, "save", save)
    monkeypatch.setattr(torch.jit, "load", lambda file: list(graphs.values())[-1])
    vendor.COMPILED.clear()
    yield


def test_the_release() -> None:
    """It is the one that the backend was written for, with the signatures that the stand-in has, and these types of model."""
    from optimum.neuron import NeuronModelForCausalLM
    from optimum.neuron.models.auto_model import _REGISTERED_NEURON_MODELS, has_neuron_model_class

    assert RELEASE == "0.4.5" and has_neuron_model_class("llama", "text-generation", "inference")
    known = {kind for kind, task, mode in _REGISTERED_NEURON_MODELS if (task, mode) == ("text-generation", "inference")}
    assert known == set(opening.MODELS)
    names = list(inspect.signature(NeuronModelForCausalLM.get_neuron_config).parameters)
    assert names == [
        "model_name_or_path",
        "config",
        "token",
        "revision",
        "instance_type",
        "batch_size",
        "sequence_length",
        "tensor_parallel_size",
    ]


def test_what_it_does_to_slots_that_sit_out() -> None:
    """The fault that the backend works around: given one row of four, its wrapper writes that row's token into the other slots."""
    from optimum.neuron.models.inference.backend.config import NxDNeuronConfig
    from optimum.neuron.models.inference.backend.modules.decoder import decoder_wrappers

    written = torch.full((4, 16), -1)

    def graph(ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, sampling: torch.Tensor) -> torch.Tensor:
        written[slots.long(), positions[:, 0].long()] = ids[:, 0].long()
        return ids.clone()

    config = NxDNeuronConfig(batch_size=4, sequence_length=16, continuous_batching=True, torch_dtype=torch.float32)
    tag = decoder_wrappers.TOKEN_GENERATION_MODEL_TAG
    wrapper = decoder_wrappers.NxDDecoderWrapperForCausalLM(type("Config", (), {"pad_token_id": 0}), config, graph, tag)
    wrapper(torch.tensor([[777]]), torch.tensor([[5]]), torch.tensor([0]), torch.ones(1, 3))
    assert written[:, 5].tolist() == [777] * 4


def test_tokens(llama: Path) -> None:
    """Rows that join, sit out and leave slots to others make transformers' tokens."""
    session, capacity = open_neuron(llama)
    assert vendor.COMPILED == ["context_encoding", "token_generation"] and capacity.compiles == 2
    traffic = Traffic(session, 3, 3)
    while len(traffic.done) < 12:
        traffic.step()
    assert {len(prompt) for prompt, _ in traffic.done} >= {1, 2}
    for prompt, tokens in traffic.done:
        assert tokens == generated(llama, prompt, len(tokens))
    assert len(vendor.COMPILED) == 2


def test_one_slot(llama: Path) -> None:
    """Without continuous batching, which it compiles for a single slot."""
    session, _ = open_neuron(llama, WarmupPlan(max_rows=1, max_row_tokens=32))
    step = session.prefill((request(1, (4, 5, 6), 1),), EMPTY, ())
    made = list(run(session, step)[1].tokens)
    for _ in range(3):
        step = session.decode((step.handle,), ())
        made += run(session, step)[1].tokens
    assert made == generated(llama, (4, 5, 6), 4)


def test_compile_cache(llama: Path, tmp_path: Path) -> None:
    """A second start compiles nothing and loads the model's own weights; none are written."""
    cache = str(tmp_path / "cache")
    assert open_neuron(llama, compile_cache=cache)[1].compiles == 2
    assert not list((tmp_path / "cache").glob("**/*.safetensors"))
    session, capacity = open_neuron(llama, compile_cache=cache)
    assert capacity.compiles == 0 and len(vendor.COMPILED) == 2
    step = session.prefill((request(1, (5, 6, 7), 2),), EMPTY, ())
    assert run(session, step)[1].tokens == tuple(generated(llama, (5, 6, 7), 1))


def test_a_compiled_model(llama: Path, tmp_path: Path) -> None:
    """What its own export writes is compared as it is: by default it samples on the device, which is refused by name."""
    from optimum.neuron import NeuronModelForCausalLM

    config = NeuronModelForCausalLM.get_neuron_config(str(llama), batch_size=2, sequence_length=64, tensor_parallel_size=1)
    assert config.on_device_sampling
    for name in ("config.json", "model.safetensors"):
        target = tmp_path / "compiled" / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((llama / name).read_bytes())
    config.save_pretrained(str(tmp_path / "compiled"))
    with pytest.raises(Unsupported, match="compiled for something else: on_device_sampling is True, not False: change"):
        open_neuron(tmp_path / "compiled", PLAN, dtype="auto")


def test_what_it_cannot_load(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own complaint is in the line."""
    from optimum.neuron.models import auto_model

    monkeypatch.setattr(auto_model, "_REGISTERED_NEURON_MODELS", {})
    with pytest.raises(InvalidModel, match="optimum-neuron cannot load it: Model type llama is not supported"):
        open_neuron(llama)
