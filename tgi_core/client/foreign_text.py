"""Requests and generations in the words of a TGI shard, which takes text."""

from __future__ import annotations

import math

from tgi_core.backend import InvalidRequest, Sampling
from tgi_core.client.types import Candidate, FinishReason, GeneratedText, Generation, PromptToken, ShardRequest, Token
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.tokenizer import Tokenizer

_REASONS = {
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    pb.FINISH_REASON_EOS_TOKEN: FinishReason.EOS_TOKEN,
    pb.FINISH_REASON_STOP_SEQUENCE: FinishReason.STOP_SEQUENCE,
}


def text_of(ids: tuple[int, ...], tokenizer: Tokenizer) -> tuple[str, bool]:
    """A text that the shard will tokenize to these ids, and whether it must add special tokens for that. Raises InvalidRequest."""
    special = tokenizer.encode("").ids
    candidates = [(ids, False)]
    if special and ids[: len(special)] == special:
        candidates.insert(0, (ids[len(special) :], True))
    for rest, add_special_tokens in candidates:
        text = tokenizer.decode(rest)
        if tokenizer.encode(text, add_special_tokens).ids == ids:
            return text, add_special_tokens
    raise InvalidRequest("the prompt has no text that this shard would read as the same tokens")


def encode_request(request: ShardRequest, tokenizer: Tokenizer, blocks: range, slots: range) -> pb.Request:
    """A request with its reservation. Raises InvalidRequest."""
    text, add_special_tokens = text_of(request.input_ids, tokenizer)
    made = len(request.input_ids) - request.prompt_len
    return pb.Request(
        id=request.id,
        inputs=text,
        input_chunks=pb.Input(chunks=[pb.InputChunk(text=text)]),
        truncate=len(request.input_ids),
        add_special_tokens=add_special_tokens,
        parameters=_parameters(request.sampling),
        stopping_parameters=pb.StoppingCriteriaParameters(
            max_new_tokens=request.stopping.max_new_tokens - made,
            stop_sequences=request.stopping.stop,
            ignore_eos_token=request.stopping.ignore_eos,
        ),
        prefill_logprobs=request.want.prompt_logprobs,
        top_n_tokens=request.want.top_n,
        blocks=blocks,
        slots=slots,
        adapter_id=request.adapter,
    )


def _parameters(sampling: Sampling) -> pb.NextTokenChooserParameters:
    return pb.NextTokenChooserParameters(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        typical_p=sampling.typical_p,
        do_sample=sampling.do_sample,
        seed=sampling.seed,
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
    )


def decode_generation(message: pb.Generation, before: str, made: int) -> Generation:
    """What the shard made; `before` is the text of the `made` tokens that a continued request has brought along."""
    finished = None
    if message.HasField("generated_text"):
        text = message.generated_text
        finished = GeneratedText(before + text.text, made + text.generated_tokens, _REASONS[text.finish_reason])
    return Generation(
        request_id=message.request_id,
        tokens=_tokens(message),
        prompt=tuple(
            PromptToken(id, text, None if math.isnan(logprob) else logprob)
            for id, logprob, text in zip(
                message.prefill_tokens.ids, message.prefill_tokens.logprobs, message.prefill_tokens.texts, strict=True
            )
        ),
        finished=finished,
    )


def _tokens(message: pb.Generation) -> tuple[Token, ...]:
    made = message.tokens
    columns = zip(made.ids, made.texts, made.logprobs, made.is_special, strict=True)
    top = [_candidates(item) for item in message.top_tokens] or [()] * len(made.ids)
    return tuple(Token(*column, top=likely) for column, likely in zip(columns, top, strict=True))


def _candidates(message: pb.Tokens) -> tuple[Candidate, ...]:
    columns = zip(message.ids, message.texts, message.logprobs, message.is_special, strict=True)
    return tuple(Candidate(*column) for column in columns)
