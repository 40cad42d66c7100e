"""Compare rows with the published formula: a defect caused by two features together is invisible to a comparison with the row run
alone.

A row's expected output is calculated from plain rows: greedy, run alone with the same tokens and adapter, unchunked and unmasked,
reporting the whole distribution. Because a repetition penalty depends on the signs of the logits, plain rows use the same one, but
no other option. The repetition penalty itself is judged by the change it makes to a plain row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from tgi_conformance.masks import allows, phase
from tgi_conformance.reference_sampling import Draw, Scores, draw, penalized
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.verdict import Violation
from tgi_core.backend import Determinism, Feature, OutputOptions, Request, Row, Sampling, TopToken

Ask = Callable[[Request, int], list[Row]]
"""Returns the first results of a request that runs alone on the device."""

NEAR = 2e-3
"""Largest accepted difference, in nats, between a logprob and its expected value."""

_UNLISTED = -15.0
"""No logit that a plain row leaves out of the whole distribution is higher than this."""

_NEEDED = {Feature.LOGPROBS, Feature.TOP_N}


def has_formula(stage: Stage) -> bool:
    """Return whether this session's plain rows report what is needed, and exactly enough."""
    capabilities = stage.capabilities
    return capabilities.determinism is Determinism.CORE and capabilities.features >= _NEEDED and stage.play.judge.exact


def check_formula(stage: Stage, ask: Ask, requests: Sequence[Request]) -> None:
    """Check the first and last token of each request, with logprobs, top tokens and prompt logprobs. Raises Violation."""
    for request in requests:
        tokens, rows = list(request.tokens), stage.play.results.get(request.id, [])
        made = [row for row in rows if row.tokens]
        if request.want.prompt_logprobs:
            _prompt(ask, request, [value for row in rows for value in row.prompt_logprobs], whole=bool(made))
        if made and request.sampling.repetition_penalty != 1:
            _repetition(stage, ask, request)
        for row in made:
            if row is made[0] or row is made[-1]:
                _token(stage, ask, request, tokens, row)
            tokens += row.tokens


def _plain(request: Request, tokens: Sequence[int], want: OutputOptions) -> Request:
    """Return the same request without any option but the adapter and the repetition penalty, which needs what comes before it: the
    watermark."""
    length, how = len(tokens), Sampling()
    if (penalty := request.sampling.repetition_penalty) != 1:
        watermark, gamma = request.sampling.watermark, request.sampling.watermark_gamma
        how = Sampling(repetition_penalty=penalty, watermark=watermark, watermark_gamma=gamma)
    fields = {"cached": 0, "take": length, "masked": False, "blocks": ()}
    return replace(request, tokens=tuple(tokens), sampling=how, want=want, **fields)  # type: ignore[arg-type]


def _repetition(stage: Stage, ask: Ask, request: Request) -> None:
    """Check that some logits explain what the repetition penalty does to a plain row. Raises Violation."""
    want, penalty, held = (
        OutputOptions(True, stage.capabilities.vocab_size),
        request.sampling.repetition_penalty,
        set(request.tokens),
    )
    plain = replace(request, sampling=Sampling())
    request = replace(request, sampling=replace(request.sampling, watermark=0.0))
    before, after = (
        {item.id: item.logprob for item in ask(_plain(one, one.tokens, want), 1)[0].top[0]} for one in (plain, request)
    )
    others, mine = (
        {token: (before[token], after[token]) for token in sorted(kept & after.keys())}
        for kept in (before.keys() - held, before.keys() & held)
    )
    if not (_shifted(others, mine, penalty) if others else _stretched(mine, penalty)):
        raise Violation(
            "formula",
            f"row {request.id} ({_features(request)}): no logits explain how the repetition penalty {penalty} changes logprobs: "
            + ", ".join(f"token {token} from {one:.4f} to {other:.4f}" for token, (one, other) in list(mine.items())[:4]),
        )


Pairs = dict[int, tuple[float, float]]
"""Token id to logprobs without and with a penalty."""


def _shifted(others: Pairs, mine: Pairs, penalty: float) -> bool:
    """Return whether the change of tokens that have the penalty follows from their logits.

    A logprob is x - z, with the logit x and an unknown z. Tokens without the penalty show how much z changes. The rest of a change
    is x/p - x or xp - x, so there are two possible logits, each of which gives a z; some z must fit all tokens.
    """
    near = NEAR * max(1.0, penalty) / abs(1 - penalty)
    before, after = next(iter(others.values()))
    shift, levels = after - before, list[tuple[float, float]]()
    for one, other in mine.values():
        change = other - one - shift
        levels.append((change * penalty / (1 - penalty) - one, change / (penalty - 1) - one))
    return not levels or any(all(any(abs(z - level) <= near for level in both) for both in levels) for z in levels[0])


def _stretched(mine: Pairs, penalty: float) -> bool:
    """Return whether differences of logprobs change by 1/p between positive logits, and by p between negative ones.

    This holds whatever z is. One difference may be between a positive and a negative logit.
    """
    ranked = sorted(mine.values(), reverse=True)
    factors = [
        {factor for factor in (1 / penalty, penalty) if abs(one[1] - two[1] - factor * (one[0] - two[0])) <= 2 * NEAR}
        for one, two in pairwise(ranked)
    ]
    splits = range(len(factors))
    return not factors or any(
        all(1 / penalty in found for found in factors[:at]) and all(penalty in found for found in factors[at + 1 :])
        for at in splits
    )


def _scores(stage: Stage, ask: Ask, request: Request, tokens: Sequence[int], unlisted: Scores) -> Scores:
    """Return scores after penalties and mask; `unlisted` supplies tokens that a plain row does not list."""
    plain = ask(_plain(request, tokens, OutputOptions(True, stage.capabilities.vocab_size)), 1)[0].top[0]
    how = replace(request.sampling, repetition_penalty=1.0)
    if request.sampling.repetition_penalty != 1:
        how = replace(how, watermark=0.0)  # the plain row has it
    found = penalized(
        unlisted | {item.id: item.logprob for item in plain}, how, tokens, request.prompt_len, stage.capabilities.vocab_size
    )
    if not request.masked:
        return found
    made, shift = len(tokens) - len(request.tokens), phase(stage.play.setup.masks, request.id)
    return {token: score for token, score in found.items() if allows(made, token, shift)}


def _expected(stage: Stage, ask: Ask, request: Request, tokens: Sequence[int]) -> Draw | None:
    """Return the expected draw, or None if it is uncertain: a masked row may choose a token that no plain row lists."""
    scores = _scores(stage, ask, request, tokens, {})
    if not scores:
        return None
    found = draw(scores, request.sampling, len(tokens))
    if request.masked and found.sure:
        most = _UNLISTED * min(1.0, request.sampling.repetition_penalty)
        unlisted = dict.fromkeys(range(stage.capabilities.vocab_size), most)
        other = draw(_scores(stage, ask, request, tokens, unlisted), request.sampling, len(tokens))
        if other.token != found.token or abs(other.logprob - found.logprob) > NEAR / 4:
            return None
    return found if found.sure else None


def _token(stage: Stage, ask: Ask, request: Request, tokens: Sequence[int], row: Row) -> None:
    expected, what = _expected(stage, ask, request, tokens), f"row {request.id} ({_features(request)})"
    if expected is None:
        return
    if row.tokens[0] != expected.token:
        raise Violation(
            "formula", f"{what} made token {row.tokens[0]} at position {len(tokens)}, but the formula gives {expected.token}"
        )
    for value in row.logprobs:
        if not abs(value - expected.logprob) <= NEAR:
            raise Violation(
                "formula", f"{what}: token {expected.token} has logprob {value:.5f}, but the formula gives {expected.logprob:.5f}"
            )
    _top(what, row.top, expected.token, expected.logprob)


def _top(what: str, tops: Sequence[Sequence[TopToken]], token: int, logprob: float) -> None:
    for top in tops:
        for item in top:
            if item.id == token and not abs(item.logprob - logprob) <= NEAR:
                raise Violation(
                    "top", f"{what}: top token {token} has logprob {item.logprob:.5f}, but the formula gives {logprob:.5f}"
                )


def _prompt(ask: Ask, request: Request, values: Sequence[float | None], *, whole: bool) -> None:
    """Compare prompt logprobs with those of the prompt run alone, greedily, unmasked and in one piece. Raises Violation.

    Without `whole`, the row left before its prompt was complete, and has only the first ones.
    """
    prompt = request.tokens[: request.prompt_len]
    plain = replace(_plain(request, request.tokens, OutputOptions(False, 0, True)), sampling=Sampling())
    expected = ask(plain, 1)[0].prompt_logprobs
    expected = expected if whole else expected[: len(values)]
    same = len(values) == len(expected) and all(
        (mine is None) is (other is None) and (mine is None or other is None or mine == other or abs(mine - other) <= NEAR)
        for mine, other in zip(values, expected, strict=True)
    )
    if not same:
        text = f"row {request.id} ({_features(request)}): {len(prompt)} prompt logprobs differ from those of the prompt alone"
        raise Violation("prompt", text)


def _features(request: Request) -> str:
    """Return a readable list of the features a row uses."""
    used = {
        str(request.sampling): request.sampling != Sampling(),
        "masked": request.masked,
        f"adapter {request.adapter}": request.adapter is not None,
        f"behind {request.cached}": request.cached > 0,
        "in chunks": request.cached + request.take < len(request.tokens),
        "continued": request.prompt_len < len(request.tokens),
    }
    return ", ".join(name for name, uses in used.items() if uses) or "plain"
