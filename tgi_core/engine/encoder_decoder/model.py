"""Calls an encoder-decoder of transformers: the encoder for a prompt, the decoder for one row's tokens, or for the next of many rows."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from tgi_core.engine.encoder_decoder.caches import of_row, of_rows
from tgi_core.engine.encoder_decoder.lanes import Lanes, LaneShape, LayerShapes
from tgi_core.engine.encoder_decoder.positions import RowPositions
from tgi_core.engine.models.cache_names import cache_name

CHUNK = 32
"""Decoder tokens of a continued row that run at a time, since the model returns logits of all of them."""


class EncoderDecoderModel:
    """A model whose decoder runs over `Lanes`. Changes the modules that depend on positions."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.device = model, model.device
        self._encoder = model.get_encoder()
        self._positions = RowPositions(model.get_decoder())
        self._takes = set(inspect.signature(model.forward).parameters)
        self._cache_name = cache_name(model)
        self._hidden = 0

    @property
    def has_biases(self) -> bool:
        """Whether its attention materializes a bias per pair of positions."""
        return self._positions.has_biases

    def layers(self) -> list[LayerShapes]:
        """The cache shapes of each decoder layer; measured."""
        ids = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        mask = torch.zeros(
            1, 1, 1, 1, dtype=self.model.dtype, device=self.device
        )  # otherwise it reads the mask's values, and there may be none
        with torch.inference_mode():
            output = self.model(input_ids=ids, decoder_input_ids=ids, decoder_attention_mask=mask, use_cache=True)
        cache: EncoderDecoderCache = getattr(output, self._cache_name)
        both = zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True)
        return [LayerShapes(_shape(own), _shape(cross)) for own, cross in both]

    def reserve(self, positions: int, pad: int | None) -> None:
        """Prepare for this many positions of the decoder."""
        states = torch.zeros(1, 1, self._width(), dtype=self.model.dtype, device=self.device)

        def embed(ids: Tensor) -> object:
            return self.model(encoder_outputs=BaseModelOutput(states), decoder_input_ids=ids.to(self.device), use_cache=False)

        with torch.inference_mode():
            self._positions.reserve(positions, pad, embed)

    def encode(self, tokens: list[int]) -> Tensor:
        """The encoder's output for a prompt, [1, tokens, hidden]."""
        ids = torch.tensor([tokens], device=self.device)
        states: Tensor = self._encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        return states

    def begin(self, lanes: Lanes, lane: int, states: Tensor, tokens: list[int]) -> Tensor:
        """Run a row's first decoder tokens. Returns the logits [vocabulary] after the last."""
        prompt_len = states.shape[1]
        mask = torch.ones(1, prompt_len, dtype=torch.int64, device=self.device)
        for start in range(0, len(tokens), CHUNK):
            ids = torch.tensor([tokens[start : start + CHUNK]], device=self.device)
            end = start + ids.shape[1]
            positions = torch.arange(start, end, device=self.device).unsqueeze(0)
            cache = of_row(lanes, lane, prompt_len, start, end)
            logits = self._call(states, mask, ids, positions, cache)
        return logits[0]

    def run(self, lanes: Lanes, tokens: list[int], positions: list[int], prompt_lens: list[int]) -> Tensor:
        """Run the next token of each row in the first lanes, given their positions in the decoder and the lengths of their prompts.
        Returns logits [rows, vocabulary]."""
        ids = torch.tensor(tokens, device=self.device).unsqueeze(1)
        where, prompts = torch.tensor(positions, device=self.device), torch.tensor(prompt_lens, device=self.device)
        longest, widest = max(positions) + 1, max(prompt_lens)
        reach = torch.arange(max(longest, widest), device=self.device)
        dtype = self.model.dtype
        own = torch.zeros(len(tokens), 1, 1, longest, dtype=dtype, device=self.device)
        own.masked_fill_((reach[:longest] > where[:, None])[:, None, None], torch.finfo(dtype).min)
        cross = (reach[:widest] < prompts[:, None]).long()
        states = torch.zeros(1, 1, 1, dtype=dtype, device=self.device).expand(len(tokens), widest, self._width())
        cache = of_rows(lanes, where, longest, widest)
        at = where.unsqueeze(1)
        return self._positions.run(ids, where, lambda: self._call(states, cross, ids, at, cache, own))

    def _call(
        self, states: Tensor, mask: Tensor, ids: Tensor, positions: Tensor, cache: EncoderDecoderCache, own: Tensor | None = None
    ) -> Tensor:
        """Logits [rows, vocabulary] after each row's last token."""
        arguments: dict[str, Any] = {
            "encoder_outputs": BaseModelOutput(states),
            "attention_mask": mask,
            "decoder_input_ids": ids,
            "decoder_attention_mask": own,
            "decoder_position_ids": positions,
            "use_cache": True,
            self._cache_name: cache,
        }
        logits: Tensor = self.model(**{name: value for name, value in arguments.items() if name in self._takes}).logits
        return logits[:, -1]

    def _width(self) -> int:
        """The size of the encoder's output."""
        if not self._hidden:
            with torch.inference_mode():
                self._hidden = self.encode([0]).shape[-1]
        return self._hidden


def _shape(layer: Any) -> LaneShape:
    return LaneShape(layer.keys.shape[1], layer.keys.shape[-1], layer.values.shape[-1])
