"""A row's next token on the host, by the published formula: for backends whose device hands its logits out."""

from __future__ import annotations

from collections.abc import Sequence

from tgi_core.backend import sampling
from tgi_core.backend.ledger import Work
from tgi_core.backend.types import Row, RowFault, RowFaultKind, TopToken


def drawn(work: Work, logits: sampling.Logits, allowed: Sequence[int] | None = None) -> Row:
    """The result of one row's part of a step. `logits` are those after its last position; they are not looked at while the prompt is
    incomplete. `allowed` are the ids that the row's mask allows, None without one (`masking.allowed_tokens`). The token is appended to
    the ledger's row, where the next step finds it; a row whose mask allows nothing, or whose logits are no numbers, gets a fault."""
    row, want, how = work.row, work.row.request.want, work.row.request.sampling
    if not work.yields:
        return Row(row.request.id)
    if allowed is not None and not allowed:
        return Row(row.request.id, fault=RowFault(RowFaultKind.MASK, "the mask allows no token"))
    try:
        only = None if allowed is None else set(allowed)
        logprobs = sampling.distribution(logits, how, row.tokens, row.request.prompt_len, only)
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
