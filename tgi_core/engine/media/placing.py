"""Which tokens of a step are placeholders of images, and the embeddings that take their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tgi_core.backend import InvalidRequest, Request
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.media.tower import VisionTower, embeds, item_digest, runs
from tgi_core.media.features import num_tokens

_AXES = 3
"""Time, height and width."""
_MOST_ROWS = 1 << 12


@dataclass(slots=True)
class _Prompt:
    """What is known of a request with images. `images` has each one's item, the key of its embeddings, and the positions of its
    placeholders; `runs` the start and end of each run of placeholders whose tokens see each other."""

    request: Request
    images: tuple[tuple[bytes, bytes, np.ndarray], ...]
    runs: tuple[tuple[int, int], ...]
    positions: Tensor | None = None
    """Positions [axes, tokens] of the prompt for rotary embeddings, once they are known and until the prompt is done."""
    shift: int | None = None
    """How far the positions of tokens after the prompt are from those of the tokens; None if it is not known yet."""


class _Known(Protocol):
    @property
    def request(self) -> Request:
        """The request that it is about."""


Known = TypeVar("Known", bound=_Known)


class KnownPrompts(Generic[Known]):
    """What is known of requests with images, each of which is read once."""

    def __init__(self, read: Callable[[Request], Known]) -> None:
        self._read = read
        self._found: dict[int, Known] = {}
        """By request id."""

    def find(self, request: Request) -> Known:
        """What is known of a request. Raises ValueError if its images do not match its placeholders."""
        found = self._found.get(request.id)
        if found is not None and found.request is request:
            return found
        made = self._found[request.id] = self._read(request)
        while len(self._found) > _MOST_ROWS:
            del self._found[next(iter(self._found))]
        return made


def find_placeholders(request: Request, placeholder_id: int) -> tuple[np.ndarray, list[int]]:
    """The positions of all placeholders in a prompt, and how many each image has. Raises ValueError if these do not match."""
    placeholders = np.flatnonzero(np.asarray(request.tokens[: request.prompt_len]) == placeholder_id)
    counts = [num_tokens(item) for item in request.media]
    if sum(counts) != len(placeholders):
        raise ValueError(f"its images have {sum(counts)} tokens, its prompt {len(placeholders)} placeholders")
    return placeholders, counts


def with_digests(items: Sequence[bytes]) -> tuple[tuple[bytes, bytes], ...]:
    """Items of `Request.media`, each with its digest."""
    return tuple((item, item_digest(item)) for item in items)


def encode(tower: VisionTower, item: bytes) -> None:
    """Compute the embeddings of an item of `Request.media` beside steps. Raises InvalidRequest."""
    try:
        tower.embed_beside(item)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


class ImagesInPrompts:
    """Puts the embeddings of images into the steps of a model."""

    def __init__(self, tower: VisionTower, embedding: nn.Module, longest_ahead: int = 0) -> None:
        """`longest_ahead`: the longest run of an image's tokens that may see each other; 0 if none see ahead."""
        self.tower, self.longest_ahead = tower, longest_ahead
        self._prompts = KnownPrompts(self._read)
        self._tokens: tuple[Tensor, Tensor] | None = None
        """The places of images' tokens in the running step, and their embeddings [1 + layers, tokens, hidden]."""
        embedding.register_forward_hook(self._replaced)
        tower.add_to_layers(lambda: self._tokens)

    def admit(self, request: Request) -> None:
        """Compute the embeddings that a new request needs in its first step; those of further images are computed in the steps that need
        them, so that other rows go on in between. Raises InvalidRequest if an image of the first step does not fit the model, any is
        damaged, does not match the placeholders or is cut, or the model finds no positions for them: that must not fail the step."""
        try:
            prompt = self._prompts.find(request)
            for start, end in prompt.runs:
                if end - start > self.longest_ahead:
                    raise ValueError(f"an image has {end - start} tokens in a row; up to {self.longest_ahead} can see each other")
            end = request.cached + request.take
            for item, key, positions in prompt.images:
                if positions[-1] >= request.cached and positions[0] < end:
                    self.tower.embeddings(item, key)
                else:
                    self.tower.check(item, key)
            if self.tower.has_axes and request.media:
                self._find_positions(prompt)
        except ValueError as error:
            raise InvalidRequest(f"request {request.id}: {error}", request_ids=(request.id,)) from error
        self.check(request, end)

    def check(self, request: Request, end: int) -> None:
        """See `TakesImages.check_images`."""
        if any(first < end < last for first, last in self._prompts.find(request).runs):
            why = f"request {request.id}: a step cuts an image, whose tokens see each other"
            raise InvalidRequest(why, request_ids=(request.id,))

    def encode(self, item: bytes) -> None:
        """See `TakesImages.encode_image`."""
        encode(self.tower, item)

    def undisturbed(self) -> AbstractContextManager[None]:
        """See `TakesImages.undisturbed`."""
        return self.tower.turns.step()

    @contextmanager
    def rows(self, step: StepMetadata) -> Iterator[None]:
        """Replace the embeddings of placeholders in this step, which runs inside, and let tokens of an image see each other if they do."""
        for row_input, first in zip(step.order, step.cu_seqlens, strict=False):
            if spans := self._spans(row_input):
                step.spans[int(first)] = spans
        parts = [
            part
            for row_input, first in zip(step.order, step.cu_seqlens, strict=False)
            for part in self._of_row(row_input, int(first))
        ]
        if parts:
            places = torch.cat([places for places, _ in parts]).to(step.input_ids.device)
            self._tokens = places, torch.cat([rows for _, rows in parts], 1)
        try:
            yield
        finally:
            self._tokens = None

    def positions(self, step: StepMetadata) -> Tensor | None:
        """Positions [axes, 1, tokens] of a step for rotary embeddings; None if they are those of its tokens. Rows without images have equal
        positions on all axes."""
        if not self.tower.has_axes or not any(row_input.row.request.media for row_input in step.order):
            return None
        found = step.positions.expand(_AXES, 1, -1).clone()
        for row_input, first in zip(step.order, step.cu_seqlens, strict=False):
            if row_input.row.request.media:
                found[:, 0, first : first + row_input.take] = self._positions_of_row(row_input)
        return found

    def _positions_of_row(self, row_input: RowInput) -> Tensor:
        """Positions [axes, taken tokens] of a row with images. Tokens after the prompt go on from the greatest position in it."""
        request, start, end = row_input.row.request, row_input.start, row_input.start + row_input.take
        known = self._prompts.find(request)
        if start >= request.prompt_len and known.shift is not None:
            known.positions = None
            return (torch.arange(start, end, device=self.tower.device) + known.shift).expand(_AXES, -1)
        prompt = self._find_positions(known)
        known.shift = int(prompt.max()) + 1 - request.prompt_len
        after = torch.arange(max(start, request.prompt_len), max(end, request.prompt_len), device=self.tower.device) + known.shift
        return torch.cat([prompt[:, start:end], after.expand(_AXES, -1)], 1)

    def _find_positions(self, prompt: _Prompt) -> Tensor:
        """Positions [axes, tokens] of a prompt. Raises ValueError if the model finds none, such as for two images with nothing between."""
        if prompt.positions is None:
            request = prompt.request
            try:
                prompt.positions = self.tower.positions(request.tokens[: request.prompt_len], request.media)
            except ValueError as error:
                raise ValueError(
                    f"the model finds no positions for its images; is there anything between them? {error}"
                ) from error
        return prompt.positions

    def _of_row(self, row_input: RowInput, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """For each image of a row with placeholders in the step: their places among the flat tokens, and their embeddings. The row's
        first token is at `first`."""
        request, start, end = row_input.row.request, row_input.start, row_input.start + row_input.take
        if not request.media or start >= request.prompt_len:
            return
        for item, key, positions in self._prompts.find(request).images:
            inside = np.flatnonzero((positions >= start) & (positions < end))
            if len(inside):
                rows = self._embeddings(request, item, key)
                yield torch.from_numpy(positions[inside] - start + first), rows[:, int(inside[0]) : int(inside[-1]) + 1]

    def _embeddings(self, request: Request, item: bytes, key: bytes) -> Tensor:
        try:
            return self.tower.embeddings(item, key)
        except ValueError as error:
            raise InvalidRequest(f"request {request.id}: {error}", request_ids=(request.id,)) from error

    def _spans(self, row_input: RowInput) -> tuple[tuple[int, int], ...]:
        """The runs of images' tokens in a row's part of a step that see each other."""
        start, end = row_input.start, row_input.start + row_input.take
        request = row_input.row.request
        if not request.media or not self.longest_ahead:
            return ()
        return tuple(run for run in self._prompts.find(request).runs if run[0] < end and run[1] > start)

    def _read(self, request: Request) -> _Prompt:
        """What is known of a request with images. Raises ValueError if they do not match its placeholders."""
        placeholders, counts = find_placeholders(request, self.tower.placeholder_id)
        ends = np.cumsum(counts)
        images = tuple(
            (item, key, placeholders[end - count : end])
            for (item, key), end, count in zip(with_digests(request.media), ends, counts, strict=True)
        )
        return _Prompt(request, images, tuple(runs(placeholders)) if self.longest_ahead else ())

    def _replaced(self, module: nn.Module, args: Sequence[Tensor], output: Tensor) -> Tensor | None:
        if self._tokens is None or embeds():
            return None
        places, rows = self._tokens
        flat = output.clone()
        flat[0].index_copy_(0, places, rows[0].to(output.dtype))
        return flat
