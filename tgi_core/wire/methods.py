"""The methods of a service, from its descriptor: paths, request types and response types."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tgi_core.proto.generate.v2 import generate_pb2 as v2
from tgi_core.proto.generate.v3 import generate_pb2 as v3

SERVICE = "TextGenerationService"

UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
"""Channel and server options: message sizes are limited only by the size of a step."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method. `path` is `/package.Service/Method`."""

    path: str
    request: type[Message]
    response: type[Message]
    streaming: bool


def _methods(file: FileDescriptor) -> dict[str, Method]:
    service = file.services_by_name[SERVICE]
    return {
        item.name: Method(
            f"/{service.full_name}/{item.name}",
            GetMessageClass(item.input_type),
            GetMessageClass(item.output_type),
            item.client_streaming,
        )
        for item in service.methods
    }


V2: dict[str, Method] = _methods(v2.DESCRIPTOR)
V3: dict[str, Method] = _methods(v3.DESCRIPTOR)

ERROR_KIND = "tgi-error-kind"
"""Trailing metadata of a failed call: the name of the error's class."""

TOKEN = "tgi-shard-token"
"""Metadata key of the token, for calls to a shard that requires one."""
