"""A row never depends on its batch mates: it makes the same tokens in a batch as alone."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.clause import clause
from tgi_conformance.fields import DECLARED, using
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.verdict import Level, Violation
from tgi_core.backend import Request, Sampling, SamplingField

WAYS = (
    Sampling(),
    Sampling(True, 1.3, top_k=20, seed=7),
    Sampling(True, 0.7, top_p=0.8, seed=8),
    Sampling(True, 1.0, seed=2**40 + 9),
    Sampling(True, 2.0, top_k=3, top_p=0.95, seed=1),
)
"""Greedy, and the filters of `text-core`."""

_FURTHER = {
    "repetition_penalty": Sampling(repetition_penalty=1.8),
    "frequency_penalty": Sampling(frequency_penalty=1.1),
    "presence_penalty": Sampling(True, presence_penalty=0.9, seed=4),
    "logit_bias": Sampling(logit_bias=((3, 5.0), (4, -30.0), (7, 4.0))),
    "typical_p": Sampling(True, 1.1, typical_p=0.6, seed=5),
}
"""Ways known to change some tokens; other fields use the first value to try from the contract's table."""


def ways(stage: Stage) -> tuple[Sampling, ...]:
    """Return the ways above, and one for each further field that the session declares."""
    fields = {item.value for item in stage.capabilities.sampling}
    more = _FURTHER | {
        spec.name: using(spec, spec.tried[0], temperature=1.1, seed=5) for spec in DECLARED if spec.name not in _FURTHER
    }
    seeded = WAYS if SamplingField.SEED in stage.capabilities.sampling else WAYS[:1]
    found = seeded + tuple(how for name, how in more.items() if name in fields and (seeded is WAYS or not how.do_sample))
    return tuple(map(stage.seeded, found))


def company(stage: Stage, hows: tuple[Sampling, ...]) -> list[Request]:
    """Build a request per way, as many as can start in one step; those beyond max_prefill_rows have a one-token prompt."""
    room, long = min(stage.capacity.max_rows, 8), stage.capacity.max_prefill_rows
    prompts = [stage.prompts[index % len(stage.prompts)] for index in range(room)]
    prompts = [prompt if index < long else prompt[:1] for index, prompt in enumerate(prompts)]
    return [stage.request(prompt, how, want=stage.wants) for prompt, how in zip(prompts, hows, strict=False)]


@clause(
    "mates.together",
    "Rows that start together generate the tokens that each generates alone.",
    Level.L2,
    situations=("several requests start together",),
    rows=2,
)
def together(scene: Scene) -> None:
    """All prompts, greedy."""
    stage = scene.stage()
    stage.decode(stage.start(*company(stage, (Sampling(),) * 8)), steps=6)


@clause("mates.same-prompt", "Rows with the same prompt generate the same tokens, each from its own blocks.", Level.L2, rows=3)
def same_prompt(scene: Scene) -> None:
    """Three identical rows, of which the first leaves."""
    stage = scene.stage()
    requests = [stage.request(stage.prompts[0], want=stage.wants) for _ in range(3)]
    batch = stage.decode(stage.start(*requests), steps=2)
    stage.decode(stage.filter(batch, [request.id for request in requests[1:]]), steps=3)


@clause("mates.merge", "Merging batches changes no token.", Level.L2, situations=("batches merge",), rows=4)
def merge(scene: Scene) -> None:
    """Batches of different ages, merged in both orders and three at a time."""
    stage = scene.stage()
    prompts = (stage.prompts[0], stage.prompts[5])[: stage.capacity.max_rows - 3]
    first = stage.decode(stage.start(*(stage.request(prompt, want=stage.wants) for prompt in prompts)), steps=2)
    second = stage.start(stage.request(stage.prompts[1], want=stage.wants))
    both = stage.decode(second, first)
    third = stage.start(stage.request(stage.prompts[2], want=stage.wants))
    fourth = stage.start(stage.request(stage.prompts[4], want=stage.wants))
    stage.decode(fourth, both, third, steps=4)


@clause("mates.filter", "Filter changes no token of the rows it keeps.", Level.L2, situations=("a row leaves",), rows=2)
def filtered(scene: Scene) -> None:
    """From a batch of five, the middle row leaves again and again."""
    stage = scene.stage()
    requests = company(stage, (Sampling(),) * 5)
    batch = stage.start(*requests)
    while len(requests) > 1:
        del requests[len(requests) // 2]
        batch = stage.decode(stage.filter(batch, [request.id for request in requests]), steps=2)


@clause(
    "mates.sampling",
    "Each row is sampled with its own request's parameters, whatever its batch mates use.",
    Level.L2,
    needs=("seeds",),
    situations=("sampling differs within a batch",),
    rows=2,
)
def sampling(scene: Scene) -> None:
    """Every way in one batch, in two orders; then the first row leaves."""
    for order in (1, -1):
        stage = scene.stage()
        requests = company(stage, ways(stage)[::order])
        batch = stage.decode(stage.start(*requests), steps=5)
        stage.decode(stage.filter(batch, [request.id for request in requests[1:]]), steps=3)


@clause(
    "mates.sampling-merge",
    "Merged batches keep each row's sampling.",
    Level.L2,
    needs=("seeds",),
    situations=("batches merge",),
    rows=2,
)
def sampling_merge(scene: Scene) -> None:
    """A greedy batch and sampled ones, merged."""
    stage = scene.stage()
    batches = [stage.start(request) for request in company(stage, ways(stage))]
    stage.decode(*reversed(batches), steps=5)


@clause("mates.wants", "Each row gets exactly the outputs that its own request asks for.", Level.L2, needs=("logprobs",), rows=4)
def wants(scene: Scene) -> None:
    """Rows that ask for everything next to rows that ask for less or nothing."""
    stage = scene.stage()
    plain = replace(stage.wants, logprobs=False, top_n=0, prompt_logprobs=False)
    kinds = (
        stage.wants,
        plain,
        replace(stage.wants, top_n=0, prompt_logprobs=False),
        replace(plain, top_n=min(2, stage.wants.top_n)),
    )
    stage.decode(
        stage.start(*(stage.request(prompt, want=want) for prompt, want in zip(stage.prompts, kinds, strict=False))), steps=3
    )


@clause("mates.repeat", "The same request generates the same tokens again, in the same session and in a new one.", Level.L2)
def repeat(scene: Scene) -> None:
    """Greedy, twice in one session."""
    stage = scene.stage()
    for _ in range(2):
        stage.filter(stage.decode(stage.start(stage.request(stage.prompts[0], want=stage.wants)), steps=6), ())


@clause(
    "mates.seeds",
    "The same seed generates the same tokens again, and different seeds generate different ones.",
    Level.L2,
    needs=("seeds",),
)
def seeds(scene: Scene) -> None:
    """Six tokens from a flat distribution with eight seeds, then again with the row alone."""
    stage = scene.stage()
    made = set()
    for seed in range(8):
        how = stage.seeded(Sampling(True, 2.5, seed=seed))
        request = stage.request(stage.prompts[0], how)
        stage.filter(stage.decode(stage.start(request), steps=5), ())
        made.add(tuple(token for row in scene.makes_alone(request, 6) for token in row.tokens))
    if len(made) < 4:
        raise Violation("seeds", f"eight seeds at temperature 2.5 made only {len(made)} different continuations")
