"""`Sampling` as messages and back: our own, which has every field, and TGI's parameters, which have some in single precision.

A message is asked which fields it has, so nothing is listed here.
"""

from __future__ import annotations

from typing import Any

from tgi_core.backend import SAMPLING, Sampling
from tgi_core.proto import contract_pb2 as contract
from tgi_core.proto.generate.v3 import generate_pb2 as pb

_BIAS = "logit_bias"
_COLUMNS = tuple(spec.name for spec in SAMPLING if spec.name != _BIAS)
"""All but the biases, which are two columns of a message."""

TGI_FIELDS = tuple(spec for spec in SAMPLING if spec.name in pb.NextTokenChooserParameters.DESCRIPTOR.fields_by_name)
"""What TGI's routers and shards know."""


def encode_sampling(sampling: Sampling) -> contract.Sampling:
    """Raises ValueError for a number that has no place in its field."""
    columns: dict[str, Any] = {name: getattr(sampling, name) for name in _COLUMNS}
    tokens, biases = [token for token, _ in sampling.logit_bias], [bias for _, bias in sampling.logit_bias]
    return contract.Sampling(bias_tokens=tokens, biases=biases, **columns)


def decode_sampling(message: contract.Sampling) -> Sampling:
    """A router of an older contract leaves newer fields out: they are 0, which is neutral."""
    columns: dict[str, Any] = {name: getattr(message, name) for name in _COLUMNS}
    return Sampling(logit_bias=tuple(zip(message.bias_tokens, message.biases, strict=True)), **columns)


def encode_parameters(sampling: Sampling) -> pb.NextTokenChooserParameters:
    """What a TGI shard is told. The rest must not have been asked for: it is not declared for such a shard."""
    fields: dict[str, Any] = {spec.name: spec.of(sampling) for spec in TGI_FIELDS}
    return pb.NextTokenChooserParameters(**fields)


def decode_parameters(given: pb.NextTokenChooserParameters) -> Sampling:
    """Of a TGI router; zero, which a client that sets nothing sends, means off. Whatever changes a distribution means sampling."""
    fields: dict[str, Any] = {spec.name: getattr(given, spec.name) or spec.neutral for spec in TGI_FIELDS}
    drawn = any(fields[spec.name] != spec.neutral for spec in TGI_FIELDS if spec.switches_on)
    return Sampling(**fields | {"do_sample": drawn or given.do_sample})
