"""Conversion of `Sampling` to and from protobuf: our own message with every field, and TGI's parameters with some, in single
precision.

Fields are taken from the message descriptors, so none are listed here.
"""

from __future__ import annotations

from typing import Any

from tgi_core.backend import SAMPLING, Sampling, SamplingField
from tgi_core.proto import contract_pb2 as contract
from tgi_core.proto.generate.v3 import generate_pb2 as pb

_BIAS = "logit_bias"
_COLUMNS = tuple(spec.name for spec in SAMPLING if spec.name != _BIAS)
"""All fields except logit_bias, which is split into two columns of the message."""

TGI_FIELDS = tuple(spec for spec in SAMPLING if spec.name in pb.NextTokenChooserParameters.DESCRIPTOR.fields_by_name)
"""Fields that TGI's routers and shards support."""


def encode_sampling(sampling: Sampling) -> contract.Sampling:
    """Encode for our own protocol. Raises ValueError for a number that is out of range for its field."""
    columns: dict[str, Any] = {name: getattr(sampling, name) for name in _COLUMNS}
    tokens, biases = [token for token, _ in sampling.logit_bias], [bias for _, bias in sampling.logit_bias]
    return contract.Sampling(bias_tokens=tokens, biases=biases, **columns)


def decode_sampling(message: contract.Sampling) -> Sampling:
    """Decode our own message. Fields that a router of an older contract omits are 0, which is neutral."""
    columns: dict[str, Any] = {name: getattr(message, name) for name in _COLUMNS}
    return Sampling(logit_bias=tuple(zip(message.bias_tokens, message.biases, strict=True)), **columns)


def encode_parameters(sampling: Sampling) -> pb.NextTokenChooserParameters:
    """Encode for a TGI shard. Other fields are always neutral, because they are not declared for such a shard. Its watermark has the
    shard's own numbers."""
    fields: dict[str, Any] = {spec.name: spec.of(sampling) for spec in TGI_FIELDS} | {"watermark": sampling.watermark != 0}
    return pb.NextTokenChooserParameters(**fields)


def decode_parameters(given: pb.NextTokenChooserParameters) -> Sampling:
    """Decode parameters of a TGI router. Zero, the value of unset fields, means off. Temperature and filters imply `do_sample`. The
    watermark is left out, because its numbers are not in the message."""
    numbers = [spec for spec in TGI_FIELDS if spec.field is not SamplingField.WATERMARK]
    fields: dict[str, Any] = {spec.name: getattr(given, spec.name) or spec.neutral for spec in numbers}
    drawn = any(fields[spec.name] != spec.neutral for spec in numbers if spec.switches_on)
    return Sampling(**fields | {"do_sample": drawn or given.do_sample})
