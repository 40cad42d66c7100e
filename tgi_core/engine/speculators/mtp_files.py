"""The layer for multi-token prediction (DeepSeek-AI 2024, arXiv 2412.19437) in the files of the model that brings it.

Names and order of concatenation are those of transformers' `MtpModel`, vLLM's `deepseek_mtp` and `mimo_mtp`, and SGLang's
`deepseek_nextn`. The layer shares embedding and output head with the model; copies of these in the files are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from tgi_core.backend import InvalidModel, Progress
from tgi_core.engine.models.build import text_config
from tgi_core.engine.models.loading import fill, finished, sees_images
from tgi_core.engine.models.sources import Source, find_sources
from tgi_core.engine.quantization.stored import StoredWeights
from tgi_core.engine.speculators.mtp_layer import NoLayer, empty_layer, path_of


@dataclass(frozen=True, slots=True)
class Layout:
    """Names in the files behind `prefix`, in which {} is the number of the model's layers: those of the layer's own parts, and the prefix
    of its decoder layer. `copied` parts are the model's."""

    prefix: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    final_norm: str
    decoder: str = ""
    hidden_first: bool = False
    copied: tuple[str, ...] = ()


LAYOUTS = (
    Layout("model.layers.{}.", "enorm", "hnorm", "eh_proj", "shared_head.norm", copied=("embed_tokens", "shared_head.head")),
    Layout("model.mtp_layers.0.", "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm", hidden_first=True),
    Layout("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm", "layers.0."),
)
"""DeepSeek's, which GLM and others share; MiMo's; Qwen's."""


class MtpFiles:
    """The first of the layers: in models with several, it guesses all tokens."""

    def __init__(self, config: PretrainedConfig, stored: StoredWeights) -> None:
        """Raises NoLayer if the files hold none, or of another kind."""
        if sees_images(config):
            raise NoLayer("multi-token prediction runs for models of text alone")
        places = [(layout, layout.prefix.format(text_config(config).num_hidden_layers)) for layout in LAYOUTS]
        held = [(layout, at) for layout, at in places if any(name.startswith(at) for name in stored.by_name)]
        if not held:
            raise NoLayer("its files hold none of the layers for multi-token prediction that its config.json counts")
        self._layout, self._prefix = held[0]
        self._file = stored.checkpoint.file
        self.loaded = False
        """Whether `load` has succeeded."""

    def load(
        self, config: PretrainedConfig, stored: StoredWeights, dtype: torch.dtype, progress: Progress, embedding: Tensor
    ) -> PreTrainedModel:
        """See `ModelSource.load` and `empty_layer`; `embedding` is the model's. Raises NoLayer, InvalidModel naming file and tensor."""
        model = self.empty(config, stored, dtype, embedding)
        own = self.named(model, stored)
        sources = find_sources(model, own)
        self._check(model, own, sources)
        fill(model, sources or {}, own, progress)
        self.loaded = True
        return finished(model, own.quantize, dtype)

    def empty(self, config: PretrainedConfig, stored: StoredWeights, dtype: torch.dtype, embedding: Tensor) -> PreTrainedModel:
        """The same without weights. Raises NoLayer."""
        return empty_layer(config, dtype, 2 * stored.most_elements, embedding, self._layout.hidden_first)

    def named(self, model: PreTrainedModel, stored: StoredWeights) -> StoredWeights:
        """The weights of the layer by the names that they have in its model."""
        names = self._names(model)
        return stored.named({names.ours(name): weight for name, weight in stored.by_name.items() if self._is_read(name)})

    def _is_read(self, name: str) -> bool:
        part, _, leaf = name.removeprefix(self._prefix).rpartition(".")
        return name.startswith(self._prefix) and part not in self._layout.copied and leaf != "inv_freq"

    def _names(self, model: PreTrainedModel) -> _Names:
        layout, base, inputs = self._layout, model.base_model_prefix, path_of(model, model.get_input_embeddings())
        parts = {
            layout.embedding_norm: f"{inputs}.embedding_norm",
            layout.hidden_norm: f"{inputs}.hidden_norm",
            layout.projection: f"{inputs}.projection",
            layout.final_norm: f"{base}.norm",
        }
        prefixes = {f"{self._prefix}{theirs}.": f"{ours}." for theirs, ours in parts.items()}
        return _Names(prefixes | {f"{self._prefix}{layout.decoder}": f"{base}.layers.0."})

    def _check(self, model: PreTrainedModel, own: StoredWeights, sources: dict[str, Source] | None) -> None:
        """Raises InvalidModel for a missing tensor, and NoLayer for one that the layer does not have."""
        wanted, held = model.state_dict().keys(), {weight.name for weight in own.by_name.values()}
        missing = _gap(held)
        if not missing and sources is not None:
            missing = min(map(self._names(model).theirs, wanted - sources.keys()), default="")
        if missing:
            raise InvalidModel(f"{self._file}: lacks tensor {missing!r} of the layer for multi-token prediction")
        if sources is None:
            raise NoLayer(
                f"{self._file}: the tensors of {self._prefix.rstrip('.')} need a conversion that only transformers knows"
            )
        read = {piece.name for name in wanted for pieces in sources[name].pieces for piece in pieces}
        if unknown := sorted(held - read):
            raise NoLayer(f"{self._file}: holds tensor {unknown[0]!r}, which a layer of this model does not have")


@dataclass(frozen=True, slots=True)
class _Names:
    """Prefixes in the model by those in the files; the first that fits counts."""

    prefixes: dict[str, str]

    def ours(self, name: str) -> str:
        """The name in the model of a tensor in the files."""
        return next((to + name.removeprefix(at) for at, to in self.prefixes.items() if name.startswith(at)), name)

    def theirs(self, name: str) -> str:
        """The name in the files of a tensor in the model."""
        return next((at + name.removeprefix(to) for at, to in self.prefixes.items() if name.startswith(to)), name)


def _gap(names: Iterable[str]) -> str:
    """The first name that a numbered part lacks and another has, such as an expert's; "" if there is none."""
    held = set(names)
    parts = [match.groups() for match in map(re.compile(r"(.*\.)(\d+)(\..*)").fullmatch, held) if match]
    of: dict[str, tuple[set[int], set[str]]] = {}
    for stem, number, leaf in parts:
        numbers, leaves = of.setdefault(stem, (set(), set()))
        numbers.add(int(number))
        leaves.add(leaf)
    wanted = (f"{stem}{number}{leaf}" for stem, (numbers, leaves) in of.items() for number in numbers for leaf in leaves)
    return min((name for name in wanted if name not in held), default="")
