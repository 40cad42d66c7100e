"""Sampling on the host with the published formula, for backends whose device returns logits."""

from __future__ import annotations

from collections.abc import Sequence

from tgi_core.backend import sampling
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.backend.types import Row, RowFault, RowFaultKind, TopToken


def drawn(
    row_input: RowInput, logits: sampling.Logits, allowed: Sequence[int] | None = None, vocab_size: int | None = None
) -> Row:
    """Sample a row's next token and return the row's result.

    `logits` are the logits at the row's last position, ignored while the prompt is incomplete. `allowed` holds the token ids that
    the row's mask allows, or None without a mask (see `masking.allowed_by_request`). The token is appended to the tracker's row for
    the next step. `vocab_size` matters to watermarks where `logits` lacks the last ids. The row gets a fault if its
    mask allows no token that has a logit, or its logits are NaN.
    """
    row, want, how = row_input.row, row_input.row.request.want, row_input.row.request.sampling
    if not row_input.yields:
        return Row(row.request.id)
    if allowed is not None and not allowed:
        return Row(row.request.id, fault=RowFault(RowFaultKind.MASK, "the mask allows no token"))
    only = None if allowed is None else set(allowed)
    if only is not None and only.isdisjoint(logits):
        count = "1 token" if len(only) == 1 else f"{len(only)} tokens"
        text = f"the mask allows {count}, the device has no logit for any of them"
        return Row(row.request.id, fault=RowFault(RowFaultKind.SAMPLER, text))
    try:
        logprobs = sampling.distribution(logits, how, row.tokens, row.request.prompt_len, only, vocab_size)
        token = sampling.choose(logprobs, how, len(row.tokens))
    except (ArithmeticError, ValueError) as error:
        kind = type(error).__name__
        return Row(row.request.id, fault=RowFault(RowFaultKind.SAMPLER, f"choosing its token failed: {kind}"))
    row.tokens.append(token)
    likeliest = sorted(logprobs.items(), key=lambda item: (-item[1], item[0]))[: want.top_n]
    return Row(
        row.request.id,
        tokens=(token,),
        logprobs=(logprobs[token],) if want.logprobs else (),
        top=(tuple(TopToken(id, logprob) for id, logprob in likeliest),) if want.top_n else (),
    )
