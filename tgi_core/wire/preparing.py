"""Messages that prepare and release grammars."""

from __future__ import annotations

from tgi_core.grammar import Cost, Grammar, GrammarsBusy, InvalidGrammar
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.wire.turns import GRAMMAR_KINDS, GRAMMAR_TYPES

_LONGEST = 200
"""The most characters of a shard's error message that a client gets."""


def encode_prepare(grammar: Grammar, cost: Cost) -> pb.PrepareRequest:
    """The message that has a grammar compiled and kept."""
    return pb.PrepareRequest(
        grammar_type=GRAMMAR_TYPES[grammar.kind],
        grammar_source=grammar.source.encode(errors="surrogatepass"),
        bytes=cost.bytes,
        seconds=cost.seconds,
    )


def encode_release(grammar: Grammar) -> pb.PrepareRequest:
    """The message that releases a grammar."""
    source = grammar.source.encode(errors="surrogatepass")
    return pb.PrepareRequest(grammar_type=GRAMMAR_TYPES[grammar.kind], grammar_source=source, release=True)


def decode_prepare(message: pb.PrepareRequest) -> tuple[Grammar, Cost]:
    """A grammar and its cost. Raises ValueError."""
    kind = GRAMMAR_KINDS.get(message.grammar_type)
    if kind is None:
        raise ValueError(f"grammar_type {message.grammar_type} cannot be prepared")
    source = message.grammar_source.decode(errors="surrogatepass")
    return Grammar(kind, source), Cost(message.bytes, message.seconds)


def check_prepared(message: pb.PrepareResponse) -> None:
    """Raises InvalidGrammar or GrammarsBusy if that is the answer."""
    if message.busy:
        raise GrammarsBusy
    if message.fault:
        raise InvalidGrammar(message.fault[:_LONGEST])
