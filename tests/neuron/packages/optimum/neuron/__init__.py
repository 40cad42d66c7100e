"""What `tgi_backend_neuron` calls of optimum-neuron 0.4.5, with its signatures and its rules, computed by transformers on the CPU.

Anything else is not here. A call that the compiled model could not run, or that would overwrite a slot that sits out, raises.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from tgi_core.engine.models.cache_names import cache_name

EXPORTS: list[str] = []
"""The directory of every model that was compiled in this process."""
_MODELS = ("llama", "mixtral", "phi3", "qwen2", "qwen3", "granite")


class NeuronConfig:
    """What a model was compiled for: the fields of NxDNeuronConfig."""

    def __init__(self, batch_size: int, sequence_length: int, tp_degree: int, torch_dtype: torch.dtype, target: str) -> None:
        self.checkpoint_id = self.checkpoint_revision = None
        self.batch_size = self.max_batch_size = batch_size
        self.sequence_length = self.max_context_length = self.n_active_tokens = sequence_length
        self.tp_degree = self.local_ranks_size = tp_degree
        self.pp_degree = self.ep_degree = 1
        self.start_rank_id = self.speculation_length = 0
        self.torch_dtype, self.target = torch_dtype, target
        self.on_device_sampling, self.output_logits, self.fused_qkv = True, False, True
        self.continuous_batching = batch_size > 1

    def save_pretrained(self, save_directory: str) -> None:
        """Write neuron_config.json."""
        versions = {"optimum_neuron_version": version("optimum-neuron"), "neuronxcc_version": version("neuronx-cc")}
        fields = vars(self) | {"torch_dtype": str(self.torch_dtype).removeprefix("torch."), "_serialized_key": "NxDNeuronConfig"}
        Path(save_directory, "neuron_config.json").write_text(json.dumps(fields | versions))

    @classmethod
    def from_pretrained(cls, directory: str) -> NeuronConfig:
        """Read it; as the real one, only for the installed versions."""
        fields = json.loads(Path(directory, "neuron_config.json").read_text())
        for name, package in (("optimum_neuron_version", "optimum-neuron"), ("neuronxcc_version", "neuronx-cc")):
            if fields.pop(name) != version(package):
                raise RuntimeError(f"exported with another {package} than {version(package)}")
        fields.pop("_serialized_key")
        config = cls(1, 1, 1, torch.float32, "")
        vars(config).update(fields, torch_dtype=getattr(torch, fields["torch_dtype"]))
        return config


class SlotCache:
    """Keys and values [slots, heads, length, width] of each layer, updated in place; what transformers asks of a cache."""

    is_compileable = False

    def __init__(self, slots: int, length: int) -> None:
        self.slots, self.length = slots, length
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.at = torch.zeros(0, dtype=torch.long)
        self.prompt: int | None = None

    def begin(self, slot: int) -> None:
        """A prompt of this slot follows, which is written over all of it."""
        self.prompt = slot
        for held in self.layers.values():
            for cache in held:
                cache[slot] = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are given by the caller."""
        return 0

    def update(self, key: Tensor, value: Tensor, layer: int, *unused: Any, **more: Any) -> tuple[Tensor, Tensor]:
        """Write a prompt into its slot, or one position of every slot."""
        if layer not in self.layers:
            shape = (self.slots, key.shape[1], self.length, key.shape[3])
            self.layers[layer] = (torch.zeros(shape, dtype=key.dtype), torch.zeros(shape, dtype=key.dtype))
        held = self.layers[layer]
        for cache, new in zip(held, (key, value), strict=True):
            if self.prompt is not None:
                cache[self.prompt, :, : new.shape[2]] = new[0]
            else:
                cache[torch.arange(self.slots), :, self.at] = new[:, :, 0]
        return (key, value) if self.prompt is not None else held


class NeuronModelForCausalLM:
    """A compiled model with its weights."""

    def __init__(self, config: Any, neuron_config: NeuronConfig) -> None:
        self.config, self.neuron_config = copy.deepcopy(config), copy.deepcopy(neuron_config)
        self._model: Any = None
        slots, length = neuron_config.batch_size, neuron_config.sequence_length
        self._cache, self._written = SlotCache(slots, length), torch.zeros(slots, length, dtype=torch.bool)

    @classmethod
    def get_neuron_config(
        cls,
        model_name_or_path: str | Path,
        config: Any = None,
        token: bool | str | None = None,
        revision: str | None = None,
        instance_type: str | None = None,
        batch_size: int | None = None,
        sequence_length: int | None = None,
        tensor_parallel_size: int | None = None,
    ) -> NeuronConfig:
        """As the real one's, for the machine of the stand-in."""
        config = config or AutoConfig.from_pretrained(model_name_or_path).get_text_config()
        if config.model_type not in _MODELS:
            raise ValueError(
                f"Model type {config.model_type} is not supported for task text-generation in neuron in inference mode"
            )
        dtype = config.dtype if isinstance(config.dtype, torch.dtype) else getattr(torch, str(config.dtype))
        length = sequence_length or min(config.max_position_embeddings, 4096)
        return NeuronConfig(batch_size or 1, length, tensor_parallel_size or 2, dtype, instance_type or "trn1")

    @classmethod
    def export(
        cls,
        model_id: str,
        neuron_config: NeuronConfig,
        config: Any = None,
        token: bool | str | None = None,
        revision: str | None = None,
        load_weights: bool | None = False,
    ) -> NeuronModelForCausalLM:
        """Compile a model of a local directory."""
        assert os.path.isdir(model_id), "this would be looked for on the hub"
        EXPORTS.append(model_id)
        model = cls(config or AutoConfig.from_pretrained(model_id).get_text_config(), neuron_config)
        if load_weights:
            model._load(Path(model_id))
        return model

    @classmethod
    def from_pretrained(cls, model_id: str | Path) -> NeuronModelForCausalLM:
        """Load a compiled model, and weights from beside it."""
        if not (Path(model_id) / "model.pt").is_file():
            raise FileNotFoundError(f"{model_id}/model.pt")
        model = cls(AutoConfig.from_pretrained(model_id), NeuronConfig.from_pretrained(str(model_id)))
        shards = Path(model_id) / "checkpoint"
        model._load(shards if shards.exists() else Path(model_id))
        return model

    def save_pretrained(self, save_directory: str) -> None:
        """Write the compiled model; the weights too, if it knows where they are."""
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(folder)
        self.neuron_config.save_pretrained(str(folder))
        (folder / "model.pt").write_text("compiled")
        source = Path(self.config._name_or_path)
        if self.config._name_or_path and source.is_dir():
            shutil.copytree(source, folder / "checkpoint")

    def __call__(
        self, input_ids: Tensor, position_ids: Tensor, seq_ids: Tensor | None = None, sampling_params: Tensor | None = None
    ) -> Tensor:
        """float32 logits [rows, 1, vocabulary]: after a prompt, the only row, or after one token of every slot."""
        assert seq_ids is not None and sampling_params is not None and self._model is not None
        assert {input_ids.dtype, position_ids.dtype, seq_ids.dtype} <= {torch.int32, torch.int64}
        rows, count = input_ids.shape
        assert position_ids.shape == (rows, count) and seq_ids.shape == (rows,), "shapes differ"
        assert sampling_params.shape == (rows, 3) and sampling_params.dtype is torch.float32
        prompt = count > 1 and int(position_ids.min()) == 0
        logits = (self._encode if prompt else self._generate)(input_ids.long(), position_ids.long(), seq_ids.tolist())
        return logits.float().unsqueeze(1)

    def _encode(self, ids: Tensor, positions: Tensor, slots: list[int]) -> Tensor:
        limit = self.neuron_config.max_context_length
        assert len(slots) == 1 and 0 <= slots[0] < self.neuron_config.batch_size, "one prompt at a time"
        assert ids.shape[1] <= limit, f"a prompt of {ids.shape[1]}, and {limit} were compiled"
        last = int(positions[0].argmax())
        assert positions[0, : last + 1].tolist() == list(range(last + 1)), "prompts are padded on the right"
        self._cache.begin(slots[0])  # what padding would leave behind the prompt, nothing ever reads
        mask = torch.full((1, 1, last + 1, last + 1), -torch.inf).triu(1)
        logits = self._run(ids[:, : last + 1], positions[:, : last + 1], mask)
        self._written[slots[0]] = torch.arange(self.neuron_config.sequence_length) < limit
        return logits[:, last]

    def _generate(self, ids: Tensor, positions: Tensor, slots: list[int]) -> Tensor:
        count, length = self.neuron_config.batch_size, self.neuron_config.sequence_length
        assert slots == list(range(count)), f"slots {slots} of {count}: the others would be overwritten"
        at = positions[:, 0]
        assert int(at.min()) >= 0 and int(at.max()) < length, "a position outside of its slot"
        before = torch.arange(length) < at.unsqueeze(1)
        assert bool((self._written | ~before).all()), "a slot is read before its prompt is written"
        self._cache.prompt, self._cache.at = None, at
        self._written[torch.arange(count), at] = True
        mask = torch.zeros(count, 1, 1, length).masked_fill(torch.arange(length) > at.view(-1, 1, 1, 1), -torch.inf)
        return self._run(ids, positions, mask)[:, -1]

    @torch.no_grad()
    def _run(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        mask = mask.to(self._model.dtype)
        cache = {cache_name(self._model): self._cache}
        out = self._model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=True, **cache)
        return out.logits

    def _load(self, directory: Path) -> None:
        loaded = AutoModelForCausalLM.from_pretrained(directory, config=self.config, dtype=self.neuron_config.torch_dtype)
        self._model = loaded.eval()
