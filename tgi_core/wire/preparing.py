"""Messages that prepare and release grammars."""

from __future__ import annotations

from tgi_core.grammar import Cost, Grammar, GrammarsBusy, InvalidGrammar
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.wire.turns import GRAMMAR_KINDS, GRAMMAR_TYPES

_LONGEST = 200
"""Maximum number of characters of a shard's error message that are passed to a client."""


def encode_prepare(grammar: Grammar, cost: Cost) -> pb.PrepareRequest:
    """Encode the request to compile and keep a grammar."""
    return pb.PrepareRequest(
        grammar_type=GRAMMAR_TYPES[grammar.kind],
        grammar_source=grammar.source.encode(errors="surrogatepass"),
        bytes=cost.bytes,
        seconds=cost.seconds,
    )


def encode_release(grammar: Grammar) -> pb.PrepareRequest:
    """Encode the request to release a grammar."""
    source = grammar.source.encode(errors="surrogatepass")
    return pb.PrepareRequest(grammar_type=GRAMMAR_TYPES[grammar.kind], grammar_source=source, release=True)


def decode_prepare(message: pb.PrepareRequest) -> tuple[Grammar, Cost]:
    """Decode a grammar and its cost. Raises ValueError."""
    kind = GRAMMAR_KINDS.get(message.grammar_type)
    if kind is None:
        raise ValueError(f"grammar_type {message.grammar_type} cannot be prepared")
    source = message.grammar_source.decode(errors="surrogatepass")
    return Grammar(kind, source), Cost(message.bytes, message.seconds)


def check_prepared(message: pb.PrepareResponse) -> None:
    """Check the response. Raises InvalidGrammar or GrammarsBusy if it reports one."""
    if message.busy:
        raise GrammarsBusy
    if message.fault:
        raise InvalidGrammar(message.fault[:_LONGEST])
