"""The published sampling formula: one random number per seed and position, and the inverse of the cumulative distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tgi_conformance.clause import Check, clause
from tgi_conformance.clauses.mates import WAYS
from tgi_conformance.fields import FILTERS, using
from tgi_conformance.reference_sampling import CLOSE, Scores, draw, logprobs, penalized
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.verdict import DoesNotApply, Level, NotReached, Violation
from tgi_core.backend import Feature, OutputOptions, Sampling, SamplingSpec

_CONTEXTS = ((3, 1, 4, 1, 5), (8, 9, 7, 9, 3, 2, 3, 8, 4), (7, 7, 8))
_ROUNDED = 0.05
"""Used instead of CLOSE where logits have 8 or 11 bits of precision: the last bit moves a logprob by a tenth."""

_SEEDS = (0, 1, 2, 3, 12345, 2**32 - 1, 2**32, 2**63 + 5, 2**64 - 1)


def distribution(scene: Scene, stage: Stage, tokens: Sequence[int], prompt_len: int | None = None) -> Scores:
    """Return the logprobs of all possible next tokens, as a greedy row reports them."""
    request = stage.outline(tokens, want=OutputOptions(True, stage.capabilities.vocab_size), prompt_len=prompt_len)
    tops = scene.makes_alone(request, 1)[0].top[0]
    return {top.id: top.logprob for top in tops}


def _compare(
    scene: Scene, hows: Sequence[Sampling], prompt_len: int | None = None, contexts: Sequence[tuple[int, ...]] = ()
) -> None:
    """Compare the token and logprob of each way of sampling, after each context, with the formula.

    Where the run is not in float32, skip tokens that rounding may have decided. Raises Violation, NotReached, DoesNotApply.
    """
    stage = scene.stage()
    compared = 0
    for context in contexts or map(stage.varied, _CONTEXTS):
        tokens = stage.folded(context)
        known = stage.outline(tokens, prompt_len=prompt_len).prompt_len
        plain = distribution(scene, stage, tokens, known)
        for how in map(stage.seeded, hows):
            request = stage.outline(tokens, how, want=OutputOptions(True), prompt_len=known)
            row = scene.makes_alone(request, 1)[0]
            scores = penalized(plain, how, tokens, known, stage.capabilities.vocab_size)
            expected = draw(scores, how, len(tokens), CLOSE if scene.target.exact else _ROUNDED)
            if not expected.sure:
                continue
            compared += 1
            if row.tokens[0] != expected.token:
                raise Violation(
                    "formula", f"{how} after {list(tokens)}: token {row.tokens[0]}, but the formula gives {expected.token}"
                )
            if abs(row.logprobs[0] - expected.logprob) > scene.tolerance:
                text = f"logprob {row.logprobs[0]:.5f}, but the formula gives {expected.logprob:.5f}"
                raise Violation("formula", f"{how} after {list(tokens)}: token {expected.token} has {text}")
    if not compared and not scene.target.exact:
        raise DoesNotApply(f"in {scene.target.dtype} every draw was too close to a boundary to judge")
    if not compared:
        raise NotReached("every draw was too close to a boundary to judge")
    scene.situations["draws compared"] += compared


@clause(
    "formula.uniform",
    "The random number of a sampled token depends on seed and position only, by Philox-4x32-10.",
    Level.L2,
    needs=("formula", "top_n", "logprobs"),
)
def uniform(scene: Scene) -> None:
    """Seeds of up to 64 bits, at temperatures that flatten the distribution."""
    _compare(scene, [Sampling(True, temperature, seed=seed) for seed in _SEEDS for temperature in (1.0, 2.0)])


@clause(
    "formula.filters",
    "Temperature applies first, then top-k, then top-p; the remaining probabilities are renormalized.",
    Level.L2,
    needs=("formula", "top_n", "logprobs"),
)
def filters(scene: Scene) -> None:
    """Each filter alone and all together, with several seeds."""
    hows = [
        filtered
        for seed in range(5)
        for filtered in (
            Sampling(True, 1.5, top_k=1, seed=seed),
            Sampling(True, 1.5, top_k=3, seed=seed),
            Sampling(True, 1.5, top_p=0.5, seed=seed),
            Sampling(True, 1.5, top_p=0.9, seed=seed),
            Sampling(True, 0.4, seed=seed),
            Sampling(True, 3.0, top_k=5, top_p=0.7, seed=seed),
        )
    ]
    _compare(scene, [*hows, *WAYS])


@clause(
    "formula.typical",
    "Typical-p applies after top-p and keeps the tokens whose surprisal is nearest to the entropy.",
    Level.L2,
    needs=("formula", "top_n", "logprobs", "typical_p"),
)
def typical(scene: Scene) -> None:
    """Alone, and after the other filters."""
    hows = [Sampling(True, 1.5, typical_p=mass, seed=seed) for mass in (0.3, 0.7, 0.95) for seed in range(4)]
    _compare(scene, [*hows, *(Sampling(True, 2.0, 6, 0.9, 0.6, seed=seed) for seed in range(4))])


def _filters_by(spec: SamplingSpec) -> Check:
    """Return a check that compares a sampling field added by a later minor version with the formula."""

    def check(scene: Scene) -> None:
        """Alone, and after the other filters."""
        hows = [using(spec, value, temperature=1.5, seed=seed) for value in spec.tried for seed in range(4)]
        hows += [using(spec, value, temperature=2.0, top_p=mass, seed=3) for value in spec.tried for mass in (0.3, 0.5, 0.8)]
        _compare(scene, [*hows, *(using(spec, value, temperature=2.0, top_k=6, top_p=0.8, seed=2) for value in spec.tried)])

    return check


for _spec in FILTERS:
    if _spec.since > (1, 1):
        clause(
            f"formula.{_spec.name.replace('_', '-')}",
            f"Sampling by {_spec.name} keeps {_spec.sentence}, in its place among the filters.",
            Level.L2,
            needs=("formula", "top_n", "logprobs", _spec.name),
            since=_spec.since,
        )(_filters_by(_spec))


@clause(
    "formula.watermark",
    "The watermark's bias is added to the greenlist that the row's last token selects, before the penalties.",
    Level.L2,
    needs=("formula", "top_n", "logprobs", "watermark"),
    since=(1, 4),
    situations=("draws compared",),
)
def watermark(scene: Scene) -> None:
    """Greedy and drawn rows, of several biases and shares, with most of the row in the prompt and with most of it generated."""
    hows = [
        replace(how, watermark=bias, watermark_gamma=share)
        for how in (Sampling(), Sampling(True, 1.5, seed=1), Sampling(True, 2.0, top_p=0.8, seed=2))
        for bias, share in ((2.0, 0.5), (6.0, 0.25), (-3.0, 0.75))
    ]
    _compare(scene, hows)
    _compare(scene, hows, 1)


@clause(
    "formula.counts",
    "Frequency and presence penalties count generated tokens only, and logit bias is added to the tokens it names.",
    Level.L2,
    needs=("formula", "top_n", "logprobs", "frequency_penalty", "presence_penalty", "logit_bias"),
    situations=("draws compared",),
)
def counts(scene: Scene) -> None:
    """On a row that ends in a token likely to be repeated: once with the whole row generated, once with none of it."""
    stage = scene.stage()
    tokens, again = _repeating(scene, stage)
    hows = [
        Sampling(logit_bias=((again, -9.0),)),
        Sampling(logit_bias=((again, 0.5), (again, 0.75))),
        Sampling(frequency_penalty=2.0),
        Sampling(presence_penalty=2.0),
        Sampling(frequency_penalty=0.5, presence_penalty=-2.0),
        *(Sampling(True, 1.2, frequency_penalty=0.8, presence_penalty=0.3, seed=seed) for seed in range(3)),
    ]
    for prompt_len in (1, len(tokens)):
        _compare(scene, hows, prompt_len, (tokens,))


def _repeating(scene: Scene, stage: Stage) -> tuple[tuple[int, ...], int]:
    """Return a row and its last token, which it contains twice and which is likely to follow again. Raises NotReached."""
    for prompt in stage.prompts[1:4]:
        for token in range(min(stage.capabilities.vocab_size, 120)):
            tokens = (*stage.folded(prompt), token, token)
            if distribution(scene, stage, tokens).get(token, -99.0) > -2.5:
                return tokens, token
    raise NotReached("no token is likely to be repeated")


_EQUAL = 1e18
"""A bias next to which every logit vanishes, even in float64.

Sums of exponentials may vanish too, so only what depends on the order of the logits is compared.
"""


@clause(
    "formula.ties",
    "Among equal logits, greedy decoding chooses the lowest id, and top-k and top-p keep the lowest ids.",
    Level.L2,
    needs=("formula", "top_n", "logprobs", "logit_bias"),
)
def ties(scene: Scene) -> None:
    """Four tokens whose bias is so large that their logits are equal; each way of sampling alone, then some in one batch."""
    if not scene.target.exact:
        raise DoesNotApply("ties are made in float32, where a large bias swallows every logit")
    stage = scene.stage()
    tokens = stage.folded(stage.varied(_CONTEXTS[0]))
    known = distribution(scene, stage, tokens)
    equal = sorted(sorted(known, key=lambda token: (-known[token], token))[:4])
    bias = tuple((token, _EQUAL) for token in reversed(equal))
    kept = {Sampling(logit_bias=bias): equal[:1], Sampling(True, top_p=1e-6, seed=6, logit_bias=bias): equal[:1]}
    for count in (1, 2, 3):
        kept |= {Sampling(True, 2.0, top_k=count, seed=seed, logit_bias=bias): equal[:count] for seed in range(6)}
    for how, chosen in kept.items():
        (token,) = scene.makes_alone(stage.outline(tokens, how), 1)[0].tokens
        if token not in chosen:
            raise Violation("ties", f"{how}: among the tied tokens {equal} it chose {token}; the formula keeps {chosen}")
    room = min(len(kept), stage.capacity.max_rows, stage.capacity.max_prefill_rows)
    stage.start(*(stage.request(tokens, how) for how in list(kept)[:room]))


@clause(
    "formula.top-tokens",
    "The top tokens of a greedy row are a distribution: over the whole vocabulary they sum to one.",
    Level.L2,
    needs=("top_n",),
)
def top_tokens(scene: Scene) -> None:
    """Ask for every token's logprob."""
    stage = scene.stage()
    for context in _CONTEXTS:
        found = distribution(scene, stage, stage.folded(stage.varied(context)))
        whole = logprobs(found)
        if any(abs(whole[token] - found[token]) > scene.tolerance for token in found):
            raise Violation("formula", f"the probabilities of all {len(found)} tokens after {context} do not sum to one")


@clause(
    "formula.greedy-limits",
    "Top-k 1, a tiny top-p and a temperature near 0 choose the token that greedy decoding chooses.",
    Level.L2,
)
def greedy_limits(scene: Scene) -> None:
    """Six tokens each, with any seed; this needs no declared determinism."""
    stage = scene.stage()
    for prompt in stage.prompts[:3]:
        likeliest = stage.outline(prompt, want=OutputOptions(False, 2 * stage.has(Feature.TOP_N)))
        greedy = scene.makes_alone(likeliest, 6)
        for how in (Sampling(True, 1.0, top_k=1, seed=3), Sampling(True, 2.0, top_p=1e-6, seed=4), Sampling(True, 0.001, seed=5)):
            limit = scene.makes_alone(stage.outline(prompt, how), 6)
            if not scene.same(likeliest, limit, greedy):
                raise Violation(
                    "formula",
                    f"{how} chose {[row.tokens[0] for row in limit]}, greedy decoding {[row.tokens[0] for row in greedy]}",
                )
