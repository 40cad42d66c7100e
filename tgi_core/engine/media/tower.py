"""The vision tower of a model: from an image's features to the embeddings that the language model gets for it."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tgi_core.engine.comparison import MODEL_ERRORS
from tgi_core.engine.media.turns import Turns
from tgi_core.engine.models.loading import language_model
from tgi_core.media.cache import BoundedCache
from tgi_core.media.features import ImageFeatures

CACHE_BYTES = 256 << 20
"""Size of the embeddings that are kept for further chunks, and further requests with the same images."""

_KINDS = "mm_token_type_ids"
"""An argument that says for each token whether it is text (0) or of an image (1)."""
_PER_TOKEN = "token_type_ids"
"""The same in other models; some mark with it what is not part of an answer, and their processors then mark no images."""
SEEN_TILES = "cross_attention_mask"
"""The argument that says which tokens see which tiles of the images, [1, tokens, images, tiles]. Features have a row for their image."""
_PLACES, _LAYERS = "visual_pos_masks", "deepstack_visual_embeds"
"""Arguments of a language model that adds embeddings after its first layers: where, and a tensor [images' tokens, hidden] per layer."""


_given: ContextVar[dict[str, Any] | None] = ContextVar("tgi_given_to_language_model", default=None)
"""Where the input of a language model goes if this thread wants no more of the model; None: the model runs."""


class UnsupportedVision(Exception):
    """A model uses its images in another way than as embeddings in place of tokens."""


class VisionTower:
    """Computes the embeddings of images. Whatever the model does with an image before its language model runs here, found by its
    structure: the model runs over the image's placeholders, until its language model has its input. It runs in a step, or beside steps in
    another thread, on the same modules."""

    def __init__(self, model: PreTrainedModel, placeholder_id: int) -> None:
        """Raises UnsupportedVision."""
        decoder = language_model(model)
        if decoder is model:
            raise UnsupportedVision("its language model is not a module of its own")
        self._model, self._decoder = model, decoder
        self.has_axes = False
        """Whether tokens have several positions; known once an image has run."""
        self._takes = set(inspect.signature(model.base_model.forward).parameters)
        self.placeholder_id = placeholder_id
        self.runs = 0
        """Number of images that have run through the tower."""
        self.turns = Turns()
        self._keeping = threading.Lock()
        self.kept = BoundedCache[Tensor](CACHE_BYTES, lambda embeddings: embeddings.nbytes)
        """Embeddings of images, by the digests of their items."""
        if _take_input not in decoder._forward_pre_hooks.values():
            decoder.register_forward_pre_hook(_take_input, prepend=True, with_kwargs=True)

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self._model.device

    def embeddings(self, item: bytes, key: bytes) -> Tensor:
        """Embeddings [1 + layers, tokens, hidden] of an item of `Request.media` with the digest `key`, from the cache if it is there.

        Those that take the place of tokens, and those that are added after each of the first layers (DeepStack), if there are any. Raises
        ValueError for damaged features.
        """
        found = self._look_up(key)
        if found is None:
            with self.turns.alone():
                found = self._found_or_made(item, key)
        return found

    def check(self, item: bytes, key: bytes) -> None:
        """Raises ValueError for an item of `Request.media` that is damaged. Whether it fits the model is known once it has run."""
        if self._look_up(key) is None:
            ImageFeatures.from_bytes(item)

    def embed_beside(self, item: bytes) -> None:
        """Compute the embeddings of an item of `Request.media` for steps to come, beside those that run, in a thread of its own. Raises
        ValueError for damaged features."""
        key = item_digest(item)
        if self._look_up(key) is None:
            with self.turns.beside():
                self._found_or_made(item, key)

    def _found_or_made(self, item: bytes, key: bytes) -> Tensor:
        """Embeddings, also if another thread has made them since they were looked for."""
        found = self._look_up(key)
        if found is None:
            found = self._embed(ImageFeatures.from_bytes(item))
            with self._keeping:
                self.kept.keep(key, found)
        return found

    def _look_up(self, key: bytes) -> Tensor | None:
        with self._keeping:
            return self.kept.find(key)

    def arguments(self, ids: Tensor, images: Sequence[ImageFeatures]) -> dict[str, Tensor]:
        """The model's arguments for token ids [1, tokens] with these images: on its device, floating-point numbers in its dtype."""
        found = {"input_ids": ids}
        if _KINDS in self._takes:
            found[_KINDS] = (ids == self.placeholder_id).to(torch.int32)
        if _PER_TOKEN in self._takes and _PER_TOKEN in images[0].tensors:
            marked = images[0].tensors[_PER_TOKEN].any()
            found[_PER_TOKEN] = ((ids == self.placeholder_id) & bool(marked)).to(torch.int64)
        if SEEN_TILES in images[0].tensors:
            found[SEEN_TILES] = self._seen_tiles(ids, images)
        for name in images[0].tensors:
            if not name.endswith((_PER_TOKEN, SEEN_TILES)):
                value = torch.cat([torch.from_numpy(image.tensors[name]) for image in images]).to(self._model.device)
                found[name] = value.to(self._model.dtype) if value.is_floating_point() else value
        return found

    def _seen_tiles(self, ids: Tensor, images: Sequence[ImageFeatures]) -> Tensor:
        tiles = [torch.from_numpy(image.tensors[SEEN_TILES][0, -1, 0]) for image in images]
        seen = torch.zeros(*ids.shape, len(images), len(tiles[0]), dtype=torch.int64)
        places = np.flatnonzero(ids[0].cpu().numpy() == self.placeholder_id).tolist()
        for number, (place, end) in enumerate(zip(places, seen_until(places), strict=True)):
            seen[0, place:end, number] = tiles[number]
        return seen.to(ids.device)

    def positions(self, prompt: Sequence[int], items: Sequence[bytes]) -> Tensor:
        """Positions [axes, tokens] of a prompt with these images for rotary embeddings, of a model whose tokens have several."""
        ids = torch.tensor([prompt], dtype=torch.int64, device=self._model.device)
        arguments = self.arguments(ids, [ImageFeatures.from_bytes(item) for item in items])
        sizes = {name: value for name, value in arguments.items() if not value.is_floating_point()}
        positions: Tensor = self._given(sizes)["position_ids"]
        return positions[-3:, 0]

    def sees_ahead(self, ids: Tensor, image: ImageFeatures) -> bool:
        """Whether the model's masks let tokens of an image see those after them in it, for a prompt [1, tokens] with an image. To be asked
        while the model makes masks. Raises UnsupportedVision if other tokens see ahead."""
        given = self._given(self.arguments(ids, [image])).get("attention_mask")
        masks = [mask for mask in (given.values() if isinstance(given, dict) else [given]) if isinstance(mask, Tensor)]
        ahead = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        seen = [
            (mask[0, 0].cpu() if mask.dtype is torch.bool else mask[0, 0].cpu() == 0) & ahead for mask in masks if mask.ndim == 4
        ]
        inside = torch.zeros_like(ahead)
        for start, end in runs(np.flatnonzero(ids[0].cpu().numpy() == self.placeholder_id)):
            inside[start:end, start:end] = True
        if any(bool((each & ~inside).any()) for each in seen):
            raise UnsupportedVision("tokens of its prompts see those after them, besides those of their image")
        return any(bool(each.any()) for each in seen)

    def add_to_layers(self, tokens: Callable[[], tuple[Tensor, Tensor] | None]) -> None:
        """Let the language model add to its first layers what `tokens` returns while it runs: the places of images' tokens among the flat
        tokens, and their embeddings [1 + layers, tokens, hidden]."""

        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
            found = tokens()
            if found is None or len(found[1]) == 1:
                return None
            places, embeddings = found
            mask = torch.zeros(kwargs["inputs_embeds"].shape[:2], dtype=torch.bool, device=places.device)
            mask[0, places] = True
            return args, {**kwargs, _PLACES: mask, _LAYERS: list(embeddings[1:])}

        self._decoder.register_forward_pre_hook(hook, with_kwargs=True)

    def _embed(self, features: ImageFeatures) -> Tensor:
        ids = torch.full((1, features.tokens), self.placeholder_id, dtype=torch.int64, device=self._model.device)
        self.runs += 1
        given = self._given(self.arguments(ids, [features]))
        embeddings, positions = given.get("inputs_embeds"), given.get("position_ids")
        if embeddings is None:
            raise UnsupportedVision("its language model takes no embeddings")
        self.has_axes = positions is not None and positions.ndim > 2
        return torch.stack([embeddings[0], *(given.get(_LAYERS) or ())])

    def _given(self, arguments: Mapping[str, Tensor]) -> dict[str, Any]:
        """What the model gives its language model. Raises ValueError."""
        given: dict[str, Any] = {}
        token = _given.set(given)
        try:
            with torch.inference_mode():
                self._model(use_cache=False, **arguments)
        except _Taken:
            pass
        except MODEL_ERRORS as error:
            raise ValueError(f"an image's features don't fit the model: {type(error).__name__}: {error}") from error
        finally:
            _given.reset(token)
        return given


def _take_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A hook before a language model: end the forward pass of a thread that wants its input only."""
    given = _given.get()
    if given is not None:
        given.update(kwargs)
        raise _Taken


def embeds() -> bool:
    """Whether this thread runs a model only to get the input of its language model."""
    return _given.get() is not None


def item_digest(item: bytes) -> bytes:
    """Identify an item of `Request.media`: 32 bytes."""
    return blake2b(item, digest_size=32).digest()


def seen_until(places: Sequence[int]) -> list[int | None]:
    """The first position that sees an image no longer, for images that layers look at and whose placeholders are at `places`: that of the
    next image, but of images in a row, that of the one after them; None for the last."""
    ends: list[int | None] = [*places[1:], None]
    for number in range(len(places) - 2, -1, -1):
        if ends[number] == places[number] + 1:
            ends[number] = ends[number + 1]
    return ends


def runs(places: np.ndarray) -> list[tuple[int, int]]:
    """Start and end of each run of consecutive places, which are sorted."""
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(places, breaks) if len(run)]


class _Taken(BaseException):
    """Ends a forward pass once the language model's input is known."""
