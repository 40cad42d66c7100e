"""Compiled models: what they depend on, whether one on disk matches, and how optimum-neuron makes one."""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgi_core.backend import Progress, Unsupported
from tgi_core.engine.accelerator.discovery import installed
from tgi_core.engine.compiling.cache import CompileCache
from tgi_core.model_files import read_json, text_config

_log = logging.getLogger("tgi_core.engine")

CONFIG = "neuron_config.json"
"""The file that optimum-neuron writes next to a compiled model."""
_NAMES = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
"""Fields of config.json that no program depends on, or that are compared separately."""


@dataclass(frozen=True, slots=True)
class ArtefactSpec:
    """What to compile. `torch_dtype` is torch's name, `target` the compiler's name for the chip."""

    batch_size: int
    sequence_length: int
    tp_degree: int
    torch_dtype: str
    target: str

    def fields(self) -> dict[str, object]:
        """Everything that the programs of a model depend on, named as in neuron_config.json."""
        return {
            "_serialized_key": "NxDNeuronConfig",
            "optimum_neuron_version": installed("optimum-neuron"),
            "neuronxcc_version": installed("neuronx-cc").partition("+")[0],
            "target": self.target,
            "torch_dtype": self.torch_dtype,
            "continuous_batching": self.batch_size > 1,
            **dict.fromkeys(("batch_size", "max_batch_size"), self.batch_size),
            **dict.fromkeys(("sequence_length", "max_context_length"), self.sequence_length),
            **dict.fromkeys(("tp_degree", "local_ranks_size"), self.tp_degree),
            **dict.fromkeys(("pp_degree", "ep_degree"), 1),
            **dict.fromkeys(("start_rank_id", "speculation_length"), 0),
            **dict.fromkeys(("on_device_sampling", "output_logits"), False),
        }

    def check(self, directory: Path) -> None:
        """Raises Unsupported, naming every field of the model compiled in `directory` that does not match."""
        found = read_json(directory / CONFIG)
        found["neuronxcc_version"] = str(found.get("neuronxcc_version")).partition("+")[0]  # without its build
        changes = [
            f"{name} is {found.get(name)}, not {value}" for name, value in self.fields().items() if found.get(name) != value
        ]
        if changes:
            raise Unsupported(
                f"{directory / CONFIG}: compiled for something else: {'; '.join(changes)}: change the flags, or compile it again"
            )


def is_compiled(directory: Path) -> bool:
    """Whether a model directory holds a compiled model."""
    return (directory / CONFIG).exists()


def loaded(model: Path, wanted: ArtefactSpec, compile_cache: str, progress: Progress) -> tuple[Any, int]:
    """The model on its cores, and how many programs were compiled for it. Raises InvalidModel, Unsupported, CompileFailed, DeviceBusy,
    OutOfMemory."""
    from tgi_backend_neuron.failures import FAILURES
    from tgi_core.engine.accelerator.failures import device_errors

    with device_errors(FAILURES, "optimum-neuron"):
        from optimum.neuron import NeuronModelForCausalLM

        if is_compiled(model):
            return NeuronModelForCausalLM.from_pretrained(str(model)), 0
        if not compile_cache:
            return _exported(model, wanted, progress, load_weights=True), len(PROGRAMS)

        def export(folder: Path) -> None:
            _exported(model, wanted, progress, load_weights=False).save_pretrained(str(folder))

        kept, is_new = CompileCache(Path(compile_cache), cache_fields(model, wanted)).folder(PROGRAMS, export)
        if not is_new:
            wanted.check(kept)
        with tempfile.TemporaryDirectory() as name:
            # Weights are the model's own: a fine-tuned twin has the same programs.
            for file in (*kept.iterdir(), *model.glob("*.safetensors*")):
                (Path(name) / file.name).symlink_to(file.resolve())
            return NeuronModelForCausalLM.from_pretrained(name), len(PROGRAMS) if is_new else 0


PROGRAMS = ("context encoding", "token generation")


def cache_fields(model: Path, wanted: ArtefactSpec) -> dict[str, str]:
    """What a compiled model in the cache depends on, by name."""
    config = text_config(read_json(model / "config.json"))
    shape = json.dumps({name: value for name, value in config.items() if name not in _NAMES}, sort_keys=True)
    fields = {"model": f"{config.get('model_type')} {hashlib.sha256(shape.encode()).hexdigest()[:16]}", **wanted.fields()}
    fields |= {name: installed(name) for name in ("torch-neuronx", "neuronx-distributed")}
    return {name: str(value) for name, value in fields.items()}


def _exported(model: Path, wanted: ArtefactSpec, progress: Progress, load_weights: bool) -> Any:
    import torch
    from optimum.neuron import NeuronModelForCausalLM
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(model)).get_text_config()
    config.dtype = getattr(torch, wanted.torch_dtype)
    if not load_weights:
        config.name_or_path = ""  # otherwise save_pretrained would write the weights too
    neuron_config = NeuronModelForCausalLM.get_neuron_config(
        str(model),
        config=config,
        batch_size=wanted.batch_size,
        sequence_length=wanted.sequence_length,
        tensor_parallel_size=wanted.tp_degree,
    )
    neuron_config.on_device_sampling = False  # logits come to the host, which samples by the published formula
    _log.info(
        "will compile 2 programs: a prompt of up to %d tokens, and a token for each of %d slots; this takes minutes",
        wanted.sequence_length,
        wanted.batch_size,
    )
    progress("compiling", 0, len(PROGRAMS), "step")
    made = NeuronModelForCausalLM.export(str(model), neuron_config, config=config, load_weights=load_weights)
    progress("compiling", len(PROGRAMS), len(PROGRAMS), "step")
    return made
