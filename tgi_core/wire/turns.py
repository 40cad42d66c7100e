"""Protobuf codec for `Turn`, the message of a step to the shard."""

from __future__ import annotations

from collections.abc import Iterable

from tgi_core.backend import Grant, OutputOptions, Request, Sampling
from tgi_core.grammar import Grammar, GrammarKind
from tgi_core.proto import contract_pb2 as contract
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.proto.sampling import decode_sampling, encode_sampling
from tgi_core.wire.types import (
    Bookkeeping,
    Clear,
    Decode,
    Filter,
    Prefill,
    ShardRequest,
    StepVerb,
    Stopping,
    Turn,
    needs_masks,
)

GRAMMAR_KINDS = {
    pb.GRAMMAR_TYPE_JSON: GrammarKind.JSON,
    pb.GRAMMAR_TYPE_REGEX: GrammarKind.REGEX,
    pb.GRAMMAR_TYPE_EBNF: GrammarKind.EBNF,
}
GRAMMAR_TYPES = {kind: number for number, kind in GRAMMAR_KINDS.items()}

Tables = tuple[tuple[int, ...], ...]


def encode_turn(turn: Turn) -> pb.Turn:
    """Encode a turn. Raises ValueError for a number that does not fit its field."""
    message = pb.Turn(read=turn.read)
    for verb in turn.bookkeeping:
        _encode_bookkeeping(verb, message.bookkeeping.add())
    if isinstance(turn.launch, Prefill):
        _encode_prefill(turn.launch, message.prefill)
    elif turn.launch is not None:
        launch = message.decode
        launch.step = turn.launch.step
        launch.batches.extend(pb.CachedBatch(id=batch) for batch in turn.launch.batches)
        launch.grants.extend(map(_encode_grant, turn.launch.grants))
    return message


def decode_turn(message: pb.Turn) -> Turn:
    """Decode a turn. Raises ValueError for an invalid one."""
    return Turn(
        bookkeeping=tuple(map(_decode_bookkeeping, message.bookkeeping)),
        launch=_decode_launch(message),
        read=message.read if message.HasField("read") else None,
    )


def _encode_bookkeeping(verb: Bookkeeping, message: pb.Bookkeeping) -> None:
    if isinstance(verb, Filter):
        message.filter.batch_id = verb.batch
        message.filter.request_ids.extend(verb.keep)
    else:
        message.clear.CopyFrom(pb.ClearCacheRequest(id=verb.batch))


def _decode_bookkeeping(message: pb.Bookkeeping) -> Bookkeeping:
    match message.WhichOneof("verb"):
        case "filter":
            return Filter(message.filter.batch_id, tuple(message.filter.request_ids))
        case "clear":
            return Clear(message.clear.id if message.clear.HasField("id") else None)
    raise ValueError("a bookkeeping verb that this version does not know")


def _encode_prefill(verb: Prefill, message: pb.PrefillRequest) -> None:
    message.step = verb.step
    message.batch.requests.extend(map(_encode_request, verb.requests))
    if verb.cached is not None:
        message.cached_batch.id = verb.cached
    message.grants.extend(map(_encode_grant, verb.grants))


def _decode_launch(message: pb.Turn) -> StepVerb | None:
    match message.WhichOneof("launch"):
        case "prefill":
            prefill = message.prefill
            return Prefill(
                step=prefill.step,
                requests=tuple(map(_decode_request, prefill.batch.requests)),
                cached=prefill.cached_batch.id if prefill.HasField("cached_batch") else None,
                grants=tuple(map(_decode_grant, prefill.grants)),
            )
        case "decode":
            decode = message.decode
            return Decode(decode.step, tuple(batch.id for batch in decode.batches), tuple(map(_decode_grant, decode.grants)))
    return None


def _encode_grant(grant: Grant) -> contract.Grant:
    message = contract.Grant(
        request_id=grant.request_id, take=grant.take, blocks=_encode_tables(grant.blocks), drafts=grant.drafts
    )
    message.no_proposals = not grant.propose
    return message


def _decode_grant(message: contract.Grant) -> Grant:
    return Grant(
        message.request_id, message.take, _decode_tables(message.blocks), tuple(message.drafts), not message.no_proposals
    )


def _encode_request(item: ShardRequest) -> pb.Request:
    request, stopping = item.request, item.stopping
    return pb.Request(
        id=request.id,
        parameters=_encode_parameters(request.sampling, item.grammar),
        stopping_parameters=pb.StoppingCriteriaParameters(
            max_new_tokens=stopping.max_new_tokens,
            ignore_eos_token=stopping.ignore_eos,
            stop=[text.encode(errors="surrogatepass") for text in stopping.stop],
            stop_token_ids=stopping.stop_ids,
            min_new_tokens=stopping.min_new_tokens,
        ),
        prefill_logprobs=request.want.prompt_logprobs,
        top_n_tokens=request.want.top_n,
        logprobs=request.want.logprobs,
        adapter_id=request.adapter,
        cache_len=request.cached,
        input_ids=request.tokens,
        prompt_len=request.prompt_len,
        take=request.take,
        tables=_encode_tables(request.blocks),
        images=item.images,
    )


def _decode_request(message: pb.Request) -> ShardRequest:
    grammar, stopping = _decode_grammar(message.parameters), _decode_stopping(message.stopping_parameters)
    request = Request(
        id=message.id,
        tokens=tuple(message.input_ids),
        prompt_len=message.prompt_len,
        cached=message.cache_len,
        blocks=_decode_tables(message.tables),
        take=message.take,
        sampling=decode_sampling(message.parameters.sampling),
        want=OutputOptions(message.logprobs, message.top_n_tokens, message.prefill_logprobs),
        masked=needs_masks(stopping, grammar),
        adapter=message.adapter_id if message.HasField("adapter_id") else None,
    )
    return ShardRequest(request, stopping, grammar, tuple(message.images))


def _decode_stopping(message: pb.StoppingCriteriaParameters) -> Stopping:
    stop = tuple(text.decode(errors="surrogatepass") for text in message.stop)
    return Stopping(message.max_new_tokens, stop, message.ignore_eos_token, tuple(message.stop_token_ids), message.min_new_tokens)


def _encode_parameters(sampling: Sampling, grammar: Grammar | None) -> pb.NextTokenChooserParameters:
    return pb.NextTokenChooserParameters(
        sampling=encode_sampling(sampling),
        grammar_type=pb.GRAMMAR_TYPE_NONE if grammar is None else GRAMMAR_TYPES[grammar.kind],
        grammar_source=b"" if grammar is None else grammar.source.encode(errors="surrogatepass"),
    )


def _decode_grammar(message: pb.NextTokenChooserParameters) -> Grammar | None:
    if message.grammar_type == pb.GRAMMAR_TYPE_NONE:
        return None
    return Grammar(GRAMMAR_KINDS[message.grammar_type], message.grammar_source.decode(errors="surrogatepass"))


def _encode_tables(tables: Tables) -> list[contract.Blocks]:
    return [contract.Blocks(ids=table) for table in tables]


def _decode_tables(messages: Iterable[contract.Blocks]) -> Tables:
    return tuple(tuple(message.ids) for message in messages)
