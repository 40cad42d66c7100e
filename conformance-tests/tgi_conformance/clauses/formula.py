"""The published sampling formula: one number per seed and position, and the inverse of the cumulative distribution."""

from __future__ import annotations

from collections.abc import Sequence

from tgi_conformance.clause import Check, clause
from tgi_conformance.clauses.mates import WAYS
from tgi_conformance.fields import FILTERS, using
from tgi_conformance.reference_sampling import CLOSE, Scores, draw, logprobs, penalized
from tgi_conformance.scene import Scene
from tgi_conformance.stage import Stage
from tgi_conformance.verdict import DoesNotApply, Level, NotReached, Violation
from tgi_core.backend import API_VERSION, Feature, OutputOptions, Sampling, SamplingSpec

_CONTEXTS = ((3, 1, 4, 1, 5), (8, 9, 7, 9, 3, 2, 3, 8, 4), (7, 7, 8))
_ROUNDED = 0.05
"""What CLOSE is where logits are rounded to 8 bits or 11: the last one moves a logprob by a tenth."""

_SEEDS = (0, 1, 2, 3, 12345, 2**32 - 1, 2**32, 2**63 + 5, 2**64 - 1)


def distribution(scene: Scene, stage: Stage, tokens: Sequence[int]) -> Scores:
    """Logprobs of all tokens that can follow, as a greedy row reports them."""
    request = stage.outline(tokens, want=OutputOptions(True, stage.capabilities.vocab_size))
    tops = scene.makes_alone(request, 1)[0].top[0]
    return {top.id: top.logprob for top in tops}


def _compare(
    scene: Scene, hows: Sequence[Sampling], prompt_len: int | None = None, contexts: Sequence[tuple[int, ...]] = ()
) -> None:
    """The token and logprob of each way of sampling, after each context, against the formula; where it is not in float32, the tokens that
    rounding cannot have decided."""
    stage = scene.stage()
    compared = 0
    for context in contexts or map(stage.varied, _CONTEXTS):
        tokens = stage.folded(context)
        known = len(tokens) if prompt_len is None else prompt_len
        plain = distribution(scene, stage, tokens)
        for how in map(stage.seeded, hows):
            request = stage.outline(tokens, how, want=OutputOptions(True), prompt_len=known)
            row = scene.makes_alone(request, 1)[0]
            expected = draw(penalized(plain, how, tokens, known), how, len(tokens), CLOSE if scene.target.exact else _ROUNDED)
            if not expected.sure:
                continue
            compared += 1
            if row.tokens[0] != expected.token:
                raise Violation("formula", f"{how} after {list(tokens)}: token {row.tokens[0]}, by the formula {expected.token}")
            if abs(row.logprobs[0] - expected.logprob) > scene.tolerance:
                text = f"logprob {row.logprobs[0]:.5f}, by the formula {expected.logprob:.5f}"
                raise Violation("formula", f"{how} after {list(tokens)}: token {expected.token} has {text}")
    if not compared and not scene.target.exact:
        raise DoesNotApply(f"in {scene.target.dtype} every draw was too close to a cut to tell")
    if not compared:
        raise NotReached("every draw was too close to a cut to tell")
    scene.situations["draws compared"] += compared


@clause(
    "formula.uniform",
    "The number that a draw uses comes from seed and position alone, by Philox-4x32-10.",
    Level.L2,
    needs=("formula", "top_n", "logprobs"),
)
def uniform(scene: Scene) -> None:
    """Seeds of up to 64 bits, at temperatures that spread the distribution."""
    _compare(scene, [Sampling(True, temperature, seed=seed) for seed in _SEEDS for temperature in (1.0, 2.0)])


@clause(
    "formula.filters",
    "Temperature, then top-k, then top-p; what they leave is renormalized.",
    Level.L2,
    needs=("formula", "top_n", "logprobs"),
)
def filters(scene: Scene) -> None:
    """Each alone and all together, by several seeds."""
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
    "Typical-p keeps the tokens whose surprise is nearest to the entropy, after top-p.",
    Level.L2,
    needs=("formula", "top_n", "logprobs", "typical_p"),
)
def typical(scene: Scene) -> None:
    """Alone, and behind the other filters."""
    hows = [Sampling(True, 1.5, typical_p=mass, seed=seed) for mass in (0.3, 0.7, 0.95) for seed in range(4)]
    _compare(scene, [*hows, *(Sampling(True, 2.0, 6, 0.9, 0.6, seed=seed) for seed in range(4))])


def _filters_by(spec: SamplingSpec) -> Check:
    """How a field that a later minor has added is held to the formula."""

    def check(scene: Scene) -> None:
        """Alone, and behind the other filters."""
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
            provisional=_spec.since == API_VERSION,
        )(_filters_by(_spec))


@clause(
    "formula.counts",
    "Frequency and presence penalties count the generated tokens only, and bias is added to its tokens.",
    Level.L2,
    needs=("formula", "top_n", "logprobs", "frequency_penalty", "presence_penalty", "logit_bias"),
    situations=("draws compared",),
)
def counts(scene: Scene) -> None:
    """On a row that ends in a token which may well follow once more: with all of the row generated, and with none of it."""
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
    """A row and its last token, which stands there twice and has a fair chance to come again."""
    for prompt in stage.prompts[1:4]:
        for token in range(min(stage.capabilities.vocab_size, 120)):
            tokens = (*stage.folded(prompt), token, token)
            if distribution(scene, stage, tokens).get(token, -99.0) > -2.5:
                return tokens, token
    raise NotReached("no token is likely to come again")


_EQUAL = 1e18
"""A bias beside which every logit is lost, in float64 too. Sums of exponentials may be lost beside it as well, so only what depends on
the order of the logits is compared."""


@clause(
    "formula.ties",
    "Of equals the lowest ids are chosen by greedy decoding, and kept by top-k and top-p.",
    Level.L2,
    needs=("formula", "top_n", "logprobs", "logit_bias"),
)
def ties(scene: Scene) -> None:
    """Four tokens whose bias is so great that their logits are one number; each way by itself, then some in one batch."""
    if not scene.target.exact:
        raise DoesNotApply("equals are made in float32, where no logit is left beside a great bias")
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
            raise Violation("ties", f"{how}: of the equals {equal} it made token {token}, and {chosen} are kept")
    room = min(len(kept), stage.capacity.max_rows, stage.capacity.max_prefill_rows)
    stage.start(*(stage.request(tokens, how) for how in list(kept)[:room]))


@clause(
    "formula.top-tokens",
    "The top tokens of a greedy row are a distribution: they sum to one where all are asked for.",
    Level.L2,
    needs=("top_n",),
)
def top_tokens(scene: Scene) -> None:
    """Over the whole vocabulary."""
    stage = scene.stage()
    for context in _CONTEXTS:
        found = distribution(scene, stage, stage.folded(stage.varied(context)))
        whole = logprobs(found)
        if any(abs(whole[token] - found[token]) > scene.tolerance for token in found):
            raise Violation("formula", f"the logprobs of all {len(found)} tokens after {context} do not sum to one")


@clause("formula.greedy-limits", "Top-k 1 and a temperature near 0 choose the token that greedy decoding chooses.", Level.L2)
def greedy_limits(scene: Scene) -> None:
    """Six tokens each, by any seed; no declared determinism is needed for it."""
    stage = scene.stage()
    for prompt in stage.prompts[:3]:
        likeliest = stage.outline(prompt, want=OutputOptions(False, 2 * stage.has(Feature.TOP_N)))
        greedy = scene.makes_alone(likeliest, 6)
        for how in (Sampling(True, 1.0, top_k=1, seed=3), Sampling(True, 2.0, top_p=1e-6, seed=4), Sampling(True, 0.001, seed=5)):
            limit = scene.makes_alone(stage.outline(prompt, how), 6)
            if not scene.same(likeliest, limit, greedy):
                raise Violation(
                    "formula", f"{how} chose {[row.tokens[0] for row in limit]}, greedy {[row.tokens[0] for row in greedy]}"
                )
