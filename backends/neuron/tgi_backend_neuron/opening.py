"""Opens a model for optimum-neuron. What is unsupported is refused, if possible, before torch or the vendor's libraries are imported."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tgi_backend_neuron.artefact import CONFIG, ArtefactSpec, is_compiled, loaded
from tgi_backend_neuron.discovery import Machine, check_free, find_machine
from tgi_core.backend import Feature, Kernel, OpenOptions, Progress
from tgi_core.backend.errors import DeviceLost, InvalidModel, OutOfMemory, Unsupported
from tgi_core.engine.accelerator.discovery import installed
from tgi_core.engine.weights.sizes import check_model
from tgi_core.errors import StartupError
from tgi_core.model_files import quantization_settings, read_json, text_config

if TYPE_CHECKING:
    from tgi_core.engine.sync_session import SyncSession

MODELS = ("granite", "llama", "llama4_text", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3")
"""Model types that optimum-neuron 0.4.5 generates text with."""
_SIZES = ("hidden_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "vocab_size")
_COMPILED = ("batch_size", "sequence_length", "tp_degree")
DTYPES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Dtypes of Neuron devices, by torch's names, and the bytes of an element."""
_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}
"""Other names of dtypes: those of HF_AUTO_CAST_TYPE."""
CORES, CAST = "HF_NUM_CORES", "HF_AUTO_CAST_TYPE"
"""Variables of TGI's Neuron backend, which apply if the flags --num-shard and --dtype are not given."""
IGNORED = {"HF_BATCH_SIZE": "--max-batch-size", "HF_SEQUENCE_LENGTH": "--max-total-tokens"}
"""Variables of its earlier images, and TGI's own flags for the same settings."""
_log = logging.getLogger("tgi_core.engine")


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint, or a model that is compiled already: then `compiled` has the contents of its neuron_config.json.

    `config` is the language model's part of config.json; `weights` counts bytes of a compiled model's weights, elements of others.
    """

    directory: Path
    config: Mapping[str, Any]
    compiled: Mapping[str, Any]
    weights: int

    @classmethod
    def read(cls, directory: Path) -> Source:
        """Raises InvalidModel naming file and field."""
        try:
            if is_compiled(directory):
                compiled = read_json(directory / CONFIG)
                weights = sum(file.stat().st_size for file in directory.glob("**/*.safetensors"))
            else:
                compiled, checkpoint = {}, check_model(directory)
                weights = sum(math.prod(entry.shape) for entry in checkpoint.tensors.values())
            whole = read_json(directory / "config.json")
            quantized, settings = quantization_settings(whole, directory)
        except StartupError as error:
            raise InvalidModel(str(error)) from error
        if settings:
            raise InvalidModel(f"{quantized}: optimum-neuron runs no quantized checkpoints; use an unquantized one")
        source = cls(directory, text_config(whole), compiled, weights)
        source.check()
        return source

    def check(self) -> None:
        """Raises InvalidModel for a type of model that is not supported, and for sizes that are missing."""
        file = self.directory / "config.json"
        if self.config.get("model_type") not in MODELS:
            raise InvalidModel(f"{file}: optimum-neuron runs no {self.config.get('model_type')!r}; it runs {', '.join(MODELS)}")
        needed = {file: (self.config, _SIZES), self.directory / CONFIG: (self.compiled, _COMPILED if self.compiled else ())}
        for path, (found, names) in needed.items():
            if missing := [name for name in names if not isinstance(found.get(name), int)]:
                raise InvalidModel(f"{path}: {missing[0]} is missing")

    @property
    def dtype(self) -> str:
        """torch's name for the dtype that the model is stored or compiled in."""
        named = self.compiled.get("torch_dtype") or self.config.get("dtype") or self.config.get("torch_dtype")
        return str(named or "float32")

    def weight_bytes(self, dtype: str) -> int:
        """Memory of the weights in a dtype."""
        return self.weights * (1 if self.compiled else DTYPES[dtype])

    def position_bytes(self, dtype: str, cores: int) -> int:
        """Memory of one position of a slot on all cores: KV heads are replicated until they divide among the cores, as in
        optimum-neuron."""
        heads = self.config["num_attention_heads"]
        kv_heads, padded = self.config.get("num_key_value_heads") or heads, -(-heads // cores) * cores
        held = padded if kv_heads == heads else kv_heads if kv_heads % cores == 0 else padded if cores % kv_heads else cores
        width = self.config.get("head_dim") or self.config["hidden_size"] // heads
        return int(2 * self.config["num_hidden_layers"] * held * width * DTYPES[dtype])


def open_slots(options: OpenOptions, environment: Mapping[str, str] = os.environ) -> SyncSession:
    """A session over a checkpoint, or over a model that is compiled already. Raises InvalidModel, Unsupported, DeviceBusy, OutOfMemory;
    DeviceLost if there is no device."""
    source = Source.read(Path(options.model))
    machine = find_machine(environment)
    if machine is None:
        raise DeviceLost("the Neuron devices are gone")
    if options.adapters:
        raise Unsupported("--lora-adapters: compiled models hold no adapters; leave it out")
    dtype, cores = _dtype(options, source, environment), _cores(options, source, machine, environment)
    weight_bytes = source.weight_bytes(dtype)
    free = int(cores * machine.core_bytes * options.memory_fraction) - weight_bytes
    if free <= 0:
        raise OutOfMemory(
            f"weights of {weight_bytes:,} bytes in {dtype}: {cores} cores of {machine.instance} have "
            f"{cores * machine.core_bytes:,}; use more cores (--num-shard), or a smaller --dtype"
        )

    def wanted(slots: int, length: int) -> ArtefactSpec:
        asked = ArtefactSpec(slots, length, cores, dtype, machine.target)
        if source.compiled:
            asked.check(source.directory)
        return asked

    compiled = (source.compiled["batch_size"], source.compiled["sequence_length"]) if source.compiled else None
    if compiled:
        wanted(*compiled)
    check_free(machine, cores)
    for variable in sorted(IGNORED.keys() & environment.keys()):
        _log.warning("%s is ignored: use %s", variable, IGNORED[variable])
    import torch  # which takes seconds

    from tgi_backend_neuron.failures import FAILURES
    from tgi_core.engine.accelerator.failures import device_errors
    from tgi_core.engine.models.shape import ModelShape
    from tgi_core.engine.slots import SlotMemory, SlotModel, SlotRunner, slot_session

    hidden, positions, vocab = (source.config[name] for name in ("hidden_size", "max_position_embeddings", "vocab_size"))

    def load(count: int, length: int, progress: Progress) -> tuple[SlotModel, int]:
        model, compiles = loaded(source.directory, wanted(count, length), options.compile_cache, progress)

        def run(ids: torch.Tensor, positions: torch.Tensor, slots: Sequence[int]) -> torch.Tensor:
            unused = torch.ones(len(slots), 3)  # parameters of sampling on the device
            with device_errors(FAILURES):
                logits: torch.Tensor = model(ids, positions, torch.tensor(slots, dtype=torch.int32), unused)
            return logits[:, -1, :vocab].float()

        return run, compiles

    shape = ModelShape(getattr(torch, dtype), vocab, positions, hidden, 0, weight_bytes)
    memory = SlotMemory(source.position_bytes(dtype, cores), free)
    runner = SlotRunner(load, shape, memory, f"optimum-neuron {installed('optimum-neuron')}", compiled)
    device = Kernel("device", str(machine), f"tensor parallel over {cores} cores")
    session = slot_session(runner, options.masks, (device,))
    if len(machine.cores) == 1:  # a second rank needs a second core
        session.declare(features=session.capabilities().features - {Feature.TENSOR_PARALLEL})
    return session


def _dtype(options: OpenOptions, source: Source, environment: Mapping[str, str]) -> str:
    asked = options.dtype if options.dtype != "auto" else environment.get(CAST) or source.dtype
    found = _ALIASES.get(asked, asked)
    if found not in DTYPES:
        raise Unsupported(f"--dtype {asked}: Neuron devices run {', '.join(DTYPES)}")
    return found


def _cores(options: OpenOptions, source: Source, machine: Machine, environment: Mapping[str, str]) -> int:
    """Cores that share the model: as many as --num-shard or HF_NUM_CORES says, as it was compiled for, or all that are visible."""
    own = environment.get(CORES) or source.compiled.get("tp_degree") or len(machine.cores)
    asked = str(options.group.world if options.group.world > 1 else own)
    if not asked.isdigit() or not 1 <= int(asked) <= len(machine.cores):
        raise Unsupported(f"--num-shard {asked}: {len(machine.cores)} Neuron cores are visible on {machine.instance}")
    return int(asked)
