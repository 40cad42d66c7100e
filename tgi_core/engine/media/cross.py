"""Images that layers of the language model look at through cross attention, as those of Llama 3.2 Vision do.

An image's keys and values are computed once, by the layers themselves, and kept by its digest; rows with the image share them. A token sees
the images before it, from the last placeholders in a row on, and a token before all images attends to all of them, as in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from tgi_core.backend import InvalidRequest, Request
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.attention.interface import CROSS, AttentionParameters, IndexedRows, use_attention
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.media.placing import KnownPrompts, encode, find_placeholders, with_digests
from tgi_core.engine.media.tower import SEEN_TILES, UnsupportedVision, VisionTower, seen_until
from tgi_core.media.features import ImageFeatures

KEPT_IMAGES = 16
"""Number of images whose keys and values are kept at least, which is the most that a prompt may have."""

_MOST_KEPT = 128
_made: ContextVar[list[Tensor] | None] = ContextVar("tgi_made_of_image", default=None)
"""Where a layer's keys and values of an image go if this thread makes them; None: a step attends."""
_STATES, _LOOKING = "cross_attention_states", "full_text_row_masked_out_mask"
"""Arguments of the language model: the images' states, without which the layers do not run, and which tokens [1, 1, tokens, 1] see any."""


@dataclass(frozen=True, slots=True)
class SeenImage:
    """An item of `Request.media`, its digest, and how many of its tiles are seen."""

    item: bytes
    key: bytes
    tiles: int
    of: int


@dataclass(frozen=True, slots=True)
class Look:
    """The flat tokens start…end − 1 of a step attend to images."""

    start: int
    end: int
    images: tuple[SeenImage, ...]


class CrossLayer:
    """The cross attention of one layer, which is number `place` of those that look at images. `embeddings` are those of `CrossVision`."""

    def __init__(self, module: nn.Module, place: int, embeddings: Callable[[bytes, bytes], Tensor]) -> None:
        self._module, self._place, self._embeddings = module, place, embeddings
        self.looks: Sequence[Look] = ()
        """Those of the running step."""
        setattr(module, CROSS, self)

    def keys_and_values(self, states: Tensor) -> Tensor:
        """[2, KV heads, keys, width] of an image's states [1, keys, hidden]."""
        made: list[Tensor] = []
        token = _made.set(made)
        try:
            self._module(hidden_states=states[:, :1], cross_attention_states=states, attention_mask=None)
        finally:
            _made.reset(token)
        return torch.stack(made)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """query [heads, tokens, width] → [tokens, heads, width]; zeros for tokens that look at no image. See `attention_forward`."""
        heads, tokens, width = query.shape
        out = query.new_zeros(tokens, heads, value.shape[-1])
        made = _made.get()
        if made is not None:
            made += [key, value]
            return out
        for look in self.looks:
            # fetched here, so that no more images are in memory than are kept
            images = [(self._embeddings(image.item, image.key)[self._place], image) for image in look.images]
            keys, values = (_joined(images, kind).unsqueeze(0) for kind in (0, 1))
            kv_heads, count = keys.shape[1], look.end - look.start
            # query heads that share a KV head become queries of one head: no key is copied
            grouped = query[:, look.start : look.end].reshape(1, kv_heads, heads // kv_heads * count, width)
            seen = F.scaled_dot_product_attention(grouped, keys, values, scale=scaling)
            out[look.start : look.end] = seen.reshape(heads, count, -1).transpose(0, 1)
        return out


def _joined(images: Sequence[tuple[Tensor, SeenImage]], kind: int) -> Tensor:
    """[KV heads, keys, width] of the seen tiles of all images, of which each has [2, KV heads, keys, width]."""
    parts = [made[kind, :, : made.shape[2] // image.of * image.tiles] for made, image in images]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class CrossVision(VisionTower):
    """Computes what an image is to the layers that look at it: `embeddings` are keys and values [layers, 2, KV heads, keys, width]."""

    def __init__(self, model: PreTrainedModel, placeholder_id: int, free_bytes: int) -> None:
        """The model's attention must be this engine's. `free_bytes`: memory that images may have. Raises UnsupportedVision."""
        super().__init__(model, placeholder_id)
        self._width, self._free_bytes = model.get_input_embeddings().weight.shape[1], free_bytes
        self._bytes_each = 0
        self.layers = tuple(CrossLayer(module, place, self.embeddings) for place, module in enumerate(self._find()))

    @property
    def image_bytes(self) -> int:
        """Bytes that images may have: those which are kept, and one that is made."""
        return self.kept.most_bytes + self._bytes_each

    def look(self, looks: Sequence[Look]) -> None:
        """Let the layers look at these images from now on."""
        for layer in self.layers:
            layer.looks = looks

    def add_hook(self, looking: Any) -> None:
        """Let the layers run in steps for which `looking` returns which tokens see an image, [tokens]; None: none."""

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
            seen = looking()
            if seen is None:
                return None
            nothing = torch.zeros(1, 1, self._width, dtype=self._model.dtype, device=self.device)
            mask = seen.to(self._model.dtype)[None, None, :, None]
            return args, {**kwargs, _STATES: nothing, _LOOKING: mask}

        self._decoder.register_forward_pre_hook(hook, with_kwargs=True)

    def _find(self) -> list[nn.Module]:
        """The modules that attend to images, in call order. Raises UnsupportedVision."""
        found: list[nn.Module] = []

        class Finder:
            def attend(
                self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, parameters: AttentionParameters
            ) -> Tensor:
                if key.shape[1] != query.shape[1]:
                    found.append(module)
                return query.new_zeros(query.shape[1], query.shape[0], value.shape[2])

            def indexed(self) -> list[IndexedRows]:
                return []

        ids = torch.zeros(1, 2, dtype=torch.int64, device=self.device)
        states = torch.zeros(1, 3, self._width, dtype=self._model.dtype, device=self.device)
        with torch.inference_mode(), use_attention(Finder()):
            self._decoder(input_ids=ids, position_ids=ids, use_cache=False, cross_attention_states=states)
        if not found:
            raise UnsupportedVision("none of its layers looks at an image through transformers' attention interface")
        return found

    def _embed(self, features: ImageFeatures) -> Tensor:
        ids = torch.full((1, features.tokens), self.placeholder_id, dtype=torch.int64, device=self.device)
        self.runs += 1
        states = self._given(self.arguments(ids, [features])).get(_STATES)
        if states is None:
            raise UnsupportedVision("its language model gets no states of an image")
        with torch.inference_mode():
            flat = states.reshape(1, -1, self._width)
            made = torch.stack([layer.keys_and_values(flat) for layer in self.layers])
        if not self._bytes_each:
            count = min(_MOST_KEPT, max(KEPT_IMAGES, self._free_bytes // made.nbytes))
            self._bytes_each, self.kept.most_bytes = made.nbytes, count * made.nbytes
        return made


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A request's images, and the positions of their placeholders."""

    request: Request
    images: tuple[SeenImage, ...]
    places: tuple[int, ...]

    def segments(self) -> Iterator[tuple[int, int | None, tuple[int, ...]]]:
        """Start, end and images seen, for each run of positions that see the same ones. Those before all images see none."""
        ends = seen_until(self.places)
        if self.places[0]:
            yield 0, self.places[0], ()
        for place, (start, after) in enumerate(zip(self.places, (*self.places[1:], None), strict=True)):
            yield start, after, tuple(each for each, end in enumerate(ends[: place + 1]) if end is None or end > start)


class ImagesInLayers:
    """Lets the layers of a model look at the images of the rows in a step."""

    def __init__(self, tower: CrossVision) -> None:
        self.tower = tower
        self._prompts = KnownPrompts(self._read)
        self._looking: Tensor | None = None
        """Which flat tokens of the running step see an image."""
        tower.add_hook(lambda: self._looking)

    def admit(self, request: Request) -> None:
        """See `TakesImages.admit_images`."""
        try:
            for image in self._prompts.find(request).images:
                self.tower.embeddings(image.item, image.key)
        except ValueError as error:
            raise InvalidRequest(f"request {request.id}: {error}", request_ids=(request.id,)) from error

    def check(self, request: Request, end: int) -> None:
        """See `TakesImages.check_images`. Its tokens see what precedes them."""

    def encode(self, item: bytes) -> None:
        """See `TakesImages.encode_image`."""
        encode(self.tower, item)

    def undisturbed(self) -> AbstractContextManager[None]:
        """See `TakesImages.undisturbed`."""
        return self.tower.turns.step()

    def positions(self, step: StepMetadata) -> Tensor | None:
        """Those of the tokens."""
        return None

    @contextmanager
    def rows(self, step: StepMetadata) -> Iterator[None]:
        """Let the rows of this step, which runs inside, look at their images."""
        looks, seen = list[Look](), torch.zeros(int(step.cu_seqlens[-1]))
        for row_input, first in zip(step.order, step.cu_seqlens, strict=False):
            if row_input.row.request.media:
                looks += self._looks(row_input, int(first), seen)
        if looks:
            self._looking = seen.to(self.tower.device)
            self.tower.look(looks)
        try:
            yield
        finally:
            self._looking = None
            self.tower.look(())

    def _looks(self, row_input: RowInput, first: int, seen: Tensor) -> Iterator[Look]:
        """What the tokens of a row attend to, the first of which is at `first`; sets `seen` for those that see an image."""
        prompt, end = self._prompts.find(row_input.row.request), row_input.start + row_input.take
        shift = first - row_input.start
        for start, after, visible in prompt.segments():
            begin, stop = max(start, row_input.start), end if after is None else min(after, end)
            if begin >= stop:
                continue
            if visible:
                images = tuple(prompt.images[each] for each in visible)
                seen[begin + shift : stop + shift] = 1
            else:
                images = tuple(replace(image, tiles=image.of) for image in prompt.images)
            yield Look(begin + shift, stop + shift, images)

    def _read(self, request: Request) -> _Prompt:
        """What is known of a request with images. Raises ValueError if they do not match its placeholders."""
        if len(request.media) > KEPT_IMAGES:
            raise ValueError(f"its prompt has {len(request.media)} images; layers can look at up to {KEPT_IMAGES}")
        places, _ = find_placeholders(request, self.tower.placeholder_id)
        images = []
        for item, key in with_digests(request.media):
            mask = ImageFeatures.from_bytes(item).tensors.get(SEEN_TILES)
            if mask is None or not mask.any():
                raise ValueError("an image's features don't say which of its tiles are seen")
            images.append(SeenImage(item, key, int(mask[0, -1].sum()), mask.shape[-1]))
        return _Prompt(request, tuple(images), tuple(map(int, places)))
