"""Prompts with images that a router has another process tokenize."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.image_models import image, save_model
from tests.grpc.values import any_text, few, small
from tests.media.pictures import encoded
from tests.scheduler.device import quiet
from tgi_core.backend import DeviceLost, Feature, InvalidRequest, WarmupPlan
from tgi_core.client.child import open_child_shard
from tgi_core.media.errors import ImageRejected, MediaBusy
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.model_files import DEMO
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.wire.tokenizing import decode_prompt, decode_tokens, encode_prompt, encode_tokens

PROMPT = MultimodalPrompt(("See ", "!"), (encoded(image(1)),), special=True)


@given(st.builds(MultimodalPrompt, few(any_text), few(st.binary(max_size=9)), st.booleans()))
def test_prompts_survive_the_wire(prompt: MultimodalPrompt) -> None:
    """With lone surrogates, too, which the tokenizer then refuses."""
    assert decode_prompt(pb.TokenizeImagesRequest.FromString(encode_prompt(prompt).SerializeToString())) == prompt


@given(st.lists(small, min_size=3, max_size=9).map(tuple), st.sampled_from([(), ((0, 1),), ((0, 2), (2, 3))]))
def test_tokens_survive_the_wire(ids: tuple[int, ...], spans: tuple[tuple[int, int], ...]) -> None:
    """Ids and spans."""
    tokens = PromptTokens(ids, spans)
    assert decode_tokens(pb.TokenizeImagesResponse.FromString(encode_tokens(tokens).SerializeToString())) == tokens


@pytest.mark.parametrize(("start", "end"), [(0, 4), (2, 2), (3, 1)])
def test_spans_outside_the_prompt(start: int, end: int) -> None:
    """A router does not trust its shard."""
    with pytest.raises(ValueError, match="outside the prompt"):
        decode_tokens(pb.TokenizeImagesResponse(input_ids=[1, 2, 3], starts=[start], ends=[end]))


def test_refusals_cross_the_wire() -> None:
    """As what they are."""
    with pytest.raises(MediaBusy):
        decode_tokens(pb.TokenizeImagesResponse(busy=True))
    with pytest.raises(ImageRejected, match=r"^x{300}$"):
        decode_tokens(pb.TokenizeImagesResponse(fault="x" * 1000))


async def test_a_shard_in_another_process(tmp_path: Path) -> None:
    """It declares images and tokenizes prompts with them; a refusal says why, and a shard that has ended says that it has."""
    directory = save_model("llava", tmp_path / "llava")
    child = await open_child_shard(directory, ["--backend", "cpu"], lambda _: WarmupPlan(max_row_tokens=256), quiet)
    try:
        assert Feature.MEDIA in child.info.capabilities.features
        tokens = await child.shard.tokenize_images(PROMPT)
        assert len(tokens.spans) == 1 and tokens.spans[0][1] - tokens.spans[0][0] == 16
        with pytest.raises(ImageRejected, match="image 1"):
            await child.shard.tokenize_images(MultimodalPrompt(("", ""), (b"nothing",), special=True))
        several = await asyncio.gather(*(child.shard.tokenize_images(PROMPT) for _ in range(9)))
        assert several == [tokens] * 9
    finally:
        await child.shard.close()
    with pytest.raises(DeviceLost):
        await child.shard.tokenize_images(PROMPT)


async def test_a_shard_of_a_model_of_text_alone() -> None:
    """It refuses by name."""
    child = await open_child_shard(DEMO, ["--backend", "reference"], lambda _: WarmupPlan(max_row_tokens=256), quiet)
    try:
        with pytest.raises(InvalidRequest, match="takes no images"):
            await child.shard.tokenize_images(PROMPT)
    finally:
        await child.shard.close()
