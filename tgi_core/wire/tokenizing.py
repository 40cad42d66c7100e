"""Messages that tokenize prompts with images."""

from __future__ import annotations

from tgi_core.media.errors import ImageRejected, MediaBusy
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.proto.generate.v3 import generate_pb2 as pb

_LONGEST = 300
"""Maximum number of characters of a shard's error message that are passed to a client."""


def encode_prompt(prompt: MultimodalPrompt) -> pb.TokenizeImagesRequest:
    """Encode a prompt."""
    texts = [text.encode(errors="surrogatepass") for text in prompt.texts]
    return pb.TokenizeImagesRequest(texts=texts, images=prompt.images, add_special_tokens=prompt.special)


def decode_prompt(message: pb.TokenizeImagesRequest) -> MultimodalPrompt:
    """Decode a prompt."""
    texts = tuple(text.decode(errors="surrogatepass") for text in message.texts)
    return MultimodalPrompt(texts, tuple(message.images), message.add_special_tokens)


def encode_tokens(tokens: PromptTokens) -> pb.TokenizeImagesResponse:
    """Encode the tokens of a prompt."""
    starts, ends = [start for start, _ in tokens.spans], [end for _, end in tokens.spans]
    return pb.TokenizeImagesResponse(input_ids=tokens.ids, starts=starts, ends=ends)


def decode_tokens(message: pb.TokenizeImagesResponse) -> PromptTokens:
    """Decode the tokens of a prompt. Raises ImageRejected or MediaBusy if the message reports one, ValueError if it is invalid."""
    if message.busy:
        raise MediaBusy
    if message.fault:
        raise ImageRejected(message.fault[:_LONGEST])
    ids, spans = tuple(message.input_ids), tuple(zip(message.starts, message.ends, strict=True))
    if not all(0 <= start < end <= len(ids) for start, end in spans):
        raise ValueError("the shard's images are outside the prompt")
    return PromptTokens(ids, spans)
