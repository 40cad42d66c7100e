"""Requests and generations in the format of TGI's routers: text, single-precision parameters."""

from __future__ import annotations

import logging

from tgi_core.backend import Feature, OutputOptions, Request, Sampling
from tgi_core.grammar import Grammar
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.proto.sampling import decode_parameters
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.turns import GRAMMAR_KINDS
from tgi_core.wire.types import Candidate, FinishReason, Generation, ShardInfo, ShardRequest, Stopping, Token

_log = logging.getLogger(__name__)

_REASONS = {
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.EOS_TOKEN: pb.FINISH_REASON_EOS_TOKEN,
    FinishReason.STOP_SEQUENCE: pb.FINISH_REASON_STOP_SEQUENCE,
}


def input_ids(request: pb.Request, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokenize a request's text and keep the last `truncate` tokens. Chunks take precedence over `inputs`; images are dropped, as
    in TGI."""
    chunks = request.input_chunks.chunks
    if any(chunk.WhichOneof("chunk") == "image" for chunk in chunks):
        _log.warning("request %d: dropping its images", request.id)
    text = "".join(chunk.text for chunk in chunks) if chunks else request.inputs
    return tokenizer.encode(text, add_special_tokens=request.add_special_tokens).ids[-request.truncate :]


def shard_request(request: pb.Request, id: int, ids: tuple[int, ...], take: int, info: ShardInfo) -> ShardRequest:
    """Convert to a tgi-core request, without blocks. Raises ValueError for features that this shard does not support."""
    if request.parameters.watermark:
        raise ValueError("`watermark` needs tgi-core's own router, which says with what numbers")
    stopping = request.stopping_parameters
    grammar = _grammar(request.parameters)
    made = Request(
        id=id,
        tokens=ids,
        prompt_len=len(ids),
        cached=0,
        blocks=(),
        take=take,
        sampling=decode_parameters(request.parameters),
        want=OutputOptions(Feature.LOGPROBS in info.capabilities.features, request.top_n_tokens, request.prefill_logprobs),
        masked=grammar is not None,
        # an unknown name selects the model itself: TGI's routers pass on any name that a client sends
        adapter=request.adapter_id if request.adapter_id in info.capabilities.adapters else None,
    )
    ends = Stopping(max_new_tokens(request), tuple(stopping.stop_sequences), stopping.ignore_eos_token)
    return ShardRequest(made, ends, grammar)


def max_new_tokens(request: pb.Request) -> int:
    """Return the number of new tokens: at least 1, since every prefill generates a token."""
    return max(1, request.stopping_parameters.max_new_tokens)


def _grammar(given: pb.NextTokenChooserParameters) -> Grammar | None:
    kind = GRAMMAR_KINDS.get(given.grammar_type)
    return None if kind is None else Grammar(kind, given.grammar)


def encode_generation(made: Generation, request_id: int, how: Sampling, with_top: bool) -> pb.Generation:
    """Convert the result of a step for a request of a TGI router."""
    message = pb.Generation(request_id=request_id, tokens=_tokens(made.tokens))
    if made.prompt:
        message.prefill_tokens.CopyFrom(
            pb.Tokens(
                ids=[token.id for token in made.prompt],
                logprobs=[float("nan") if token.logprob is None else token.logprob for token in made.prompt],
                texts=[token.text for token in made.prompt],
            )
        )
    if with_top:
        message.top_tokens.extend(_tokens(token.top) for token in made.tokens)
    if made.finished is not None:
        message.generated_text.CopyFrom(
            pb.GeneratedText(
                text=made.finished.text,
                generated_tokens=made.finished.generated_tokens,
                finish_reason=_REASONS[made.finished.finish_reason],
                seed=how.seed if how.do_sample else None,
            )
        )
    return message


def _tokens(tokens: tuple[Token, ...] | tuple[Candidate, ...]) -> pb.Tokens:
    return pb.Tokens(
        ids=[token.id for token in tokens],
        logprobs=[token.logprob for token in tokens],
        texts=[token.text for token in tokens],
        is_special=[token.special for token in tokens],
    )
