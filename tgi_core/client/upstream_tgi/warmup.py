"""The warm-up batch of TGI's router, with which its shards measure their memory."""

from __future__ import annotations

from tgi_core.proto.generate.v3 import generate_pb2 as pb


def warmup_request(max_prefill_tokens: int, max_total_tokens: int | None) -> pb.WarmupRequest:
    """Create requests with as many tokens as one step may compute. A shard without a given total chooses its own."""
    longest = max_prefill_tokens if max_total_tokens is None else min(max_prefill_tokens, max_total_tokens - 1)
    starts = range(0, max_prefill_tokens, longest)
    requests = [_request(min(longest, max_prefill_tokens - start), max_total_tokens) for start in starts]
    return pb.WarmupRequest(
        batch=pb.Batch(id=0, requests=requests, size=len(requests), max_tokens=longest),
        max_input_tokens=None if max_total_tokens is None else longest,
        max_prefill_tokens=max_prefill_tokens,
        max_total_tokens=max_total_tokens,
    )


def _request(truncate: int, max_total_tokens: int | None) -> pb.Request:
    text = "_test " * truncate
    return pb.Request(
        id=0,
        inputs=text,
        input_chunks=pb.Input(chunks=[pb.InputChunk(text=text)]),
        truncate=truncate,
        add_special_tokens=True,
        parameters=pb.NextTokenChooserParameters(
            temperature=0.9,
            top_k=10,
            top_p=0.9,
            typical_p=0.9,
            repetition_penalty=1.2,
            frequency_penalty=0.1,
            watermark=True,
        ),
        stopping_parameters=pb.StoppingCriteriaParameters(
            max_new_tokens=1 if max_total_tokens is None else max_total_tokens - truncate, ignore_eos_token=True
        ),
        prefill_logprobs=True,
        top_n_tokens=20,
    )
