"""A row's next token on the host, by the published formula: for backends whose device hands its logits out."""

from __future__ import annotations

from tgi_core.backend import sampling
from tgi_core.backend.ledger import Work
from tgi_core.backend.types import Row, TopToken


def drawn(work: Work, logits: sampling.Logits) -> Row:
    """The result of one row's part of a step. `logits` are those after its last position; they are not looked at while the prompt is
    incomplete. The token is appended to the ledger's row, where the next step finds it."""
    row, want, how = work.row, work.row.request.want, work.row.request.sampling
    if not work.yields:
        return Row(row.request.id)
    logprobs = sampling.distribution(logits, how, row.tokens, row.request.prompt_len)
    token = sampling.choose(logprobs, how, len(row.tokens))
    row.tokens.append(token)
    likeliest = sorted(logprobs.items(), key=lambda item: (-item[1], item[0]))[: want.top_n]
    return Row(
        row.request.id,
        tokens=(token,),
        logprobs=(logprobs[token],) if want.logprobs else (),
        top=(tuple(TopToken(id, logprob) for id, logprob in likeliest),) if want.top_n else (),
    )
