"""Prompts with images that a router has the shard tokenize."""

from __future__ import annotations

from tgi_core.media.errors import ImageRejected, MediaBusy
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.server.grpc_host import ShardHost
from tgi_core.wire.tokenizing import decode_prompt, encode_tokens


def tokenize_images(host: ShardHost, request: pb.TokenizeImagesRequest) -> pb.TokenizeImagesResponse:
    """Tokenize a prompt. Waits for a worker process, not for the shard's thread. Raises BackendError."""
    try:
        return encode_tokens(host.model().server.tokenize_images(decode_prompt(request)).result())
    except MediaBusy:
        return pb.TokenizeImagesResponse(busy=True)
    except ImageRejected as error:
        return pb.TokenizeImagesResponse(fault=str(error).encode(errors="replace").decode() or "they are rejected")
