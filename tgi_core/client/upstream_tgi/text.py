"""Requests and generations in the format of TGI's shards, with text instead of token ids."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tgi_core.backend import InvalidRequest
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.proto.sampling import encode_parameters
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.results import check_logprobs
from tgi_core.wire.types import Candidate, FinishReason, GeneratedText, Generation, PromptToken, ShardRequest, Token

_REASONS = {
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    pb.FINISH_REASON_EOS_TOKEN: FinishReason.EOS_TOKEN,
    pb.FINISH_REASON_STOP_SEQUENCE: FinishReason.STOP_SEQUENCE,
}


def text_of(ids: tuple[int, ...], tokenizer: Tokenizer) -> tuple[str, bool]:
    """Return a text that the shard will tokenize to these ids, and whether the shard must add special tokens. Raises
    InvalidRequest."""
    special = tokenizer.encode("").ids
    candidates = [(ids, False)]
    if special and ids[: len(special)] == special:
        candidates.insert(0, (ids[len(special) :], True))
    for rest, add_special_tokens in candidates:
        text = tokenizer.decode(rest)
        if tokenizer.encode(text, add_special_tokens).ids == ids:
            return text, add_special_tokens
    raise InvalidRequest("the prompt has no text that this shard would read as the same tokens")


def encode_request(item: ShardRequest, tokenizer: Tokenizer, blocks: range, slots: range) -> pb.Request:
    """Encode a request with its reserved blocks. Raises InvalidRequest."""
    request, stopping = item.request, item.stopping
    if stopping.stop_ids or stopping.min_new_tokens:
        raise InvalidRequest("TGI's shards have no stop tokens and no minimum of tokens", request_ids=(request.id,))
    text, add_special_tokens = text_of(request.tokens, tokenizer)
    made = len(request.tokens) - request.prompt_len
    return pb.Request(
        id=request.id,
        inputs=text,
        input_chunks=pb.Input(chunks=[pb.InputChunk(text=text)]),
        truncate=len(request.tokens),
        add_special_tokens=add_special_tokens,
        parameters=encode_parameters(request.sampling),
        stopping_parameters=pb.StoppingCriteriaParameters(
            max_new_tokens=stopping.max_new_tokens - made,
            stop_sequences=stopping.stop,
            ignore_eos_token=stopping.ignore_eos,
        ),
        prefill_logprobs=request.want.prompt_logprobs,
        top_n_tokens=request.want.top_n,
        blocks=blocks,
        slots=slots,
        adapter_id=request.adapter,
    )


@dataclass(slots=True)
class UpstreamRow:
    """A request on the shard: its slot, the number of tokens that it may still generate, and the text and number of those that it
    started with."""

    place: int
    left: int
    before: str
    brought: int
    made: int = 0


def decode_generation(message: pb.Generation, row: UpstreamRow, vocab_size: int) -> Generation:
    """Decode the result of a step for a row. Raises ValueError if it is invalid."""
    count = len(message.tokens.ids)
    if not 1 <= count <= row.left:
        raise ValueError(f"{count} tokens for request {message.request_id}, which may have {row.left} more")
    row.made += count
    row.left -= count
    return Generation(
        request_id=message.request_id,
        tokens=_tokens(message, vocab_size),
        prompt=_prompt(message.prefill_tokens, vocab_size),
        finished=_finished(message, row),
    )


def _finished(message: pb.Generation, row: UpstreamRow) -> GeneratedText | None:
    if not message.HasField("generated_text"):
        if not row.left:
            raise ValueError(f"request {message.request_id} has all of its tokens and no end")
        return None
    text = message.generated_text
    if text.finish_reason not in _REASONS:
        raise ValueError(f"request {message.request_id} ends for a reason of number {text.finish_reason}")
    if text.generated_tokens != row.made:
        raise ValueError(f"request {message.request_id} ends with {text.generated_tokens} tokens, of which {row.made} were made")
    return GeneratedText(row.before + text.text, row.brought + row.made, _REASONS[text.finish_reason])


def _tokens(message: pb.Generation, vocab_size: int) -> tuple[Token, ...]:
    made = message.tokens
    _check(made, vocab_size)
    columns = zip(made.ids, made.texts, made.logprobs, made.is_special, strict=True)
    top = [_candidates(item, vocab_size) for item in message.top_tokens] or [()] * len(made.ids)
    return tuple(Token(*column, top=likely) for column, likely in zip(columns, top, strict=True))


def _candidates(message: pb.Tokens, vocab_size: int) -> tuple[Candidate, ...]:
    _check(message, vocab_size, unlikely=True)
    columns = zip(message.ids, message.texts, message.logprobs, message.is_special, strict=True)
    return tuple(Candidate(*column) for column in columns)


def _prompt(message: pb.Tokens, vocab_size: int) -> tuple[PromptToken, ...]:
    _check(message, vocab_size, unlikely=True)
    columns = zip(message.ids, message.texts, message.logprobs, strict=True)
    return tuple(PromptToken(id, text, None if math.isnan(logprob) else logprob) for id, text, logprob in columns)


def _check(message: pb.Tokens, vocab_size: int, unlikely: bool = False) -> None:
    if message.ids and max(message.ids) >= vocab_size:
        raise ValueError(f"token {max(message.ids)} of a vocabulary of {vocab_size}")
    check_logprobs(message.logprobs, unlikely)
