"""Prompts with images that a router has the shard tokenize."""

from __future__ import annotations

from concurrent.futures import CancelledError

import grpc

from tgi_core.media.errors import ImageRejected, MediaBusy
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.server.grpc_host import ShardHost
from tgi_core.wire.tokenizing import decode_prompt, encode_tokens


def tokenize_images(
    host: ShardHost, request: pb.TokenizeImagesRequest, context: grpc.ServicerContext
) -> pb.TokenizeImagesResponse:
    """Tokenize a prompt, and encode its images, unless the router gives up. Waits for a worker process and for the vision tower, not for
    the shard's thread. Raises BackendError."""
    try:
        tokens = host.model().server.tokenize_images(decode_prompt(request))

        def give_up() -> None:
            tokens.cancel()

        if not context.add_callback(give_up):
            give_up()
        return encode_tokens(tokens.result())
    except (MediaBusy, CancelledError):
        return pb.TokenizeImagesResponse(busy=True)
    except ImageRejected as error:
        return pb.TokenizeImagesResponse(fault=str(error).encode(errors="replace").decode() or "they are rejected")
