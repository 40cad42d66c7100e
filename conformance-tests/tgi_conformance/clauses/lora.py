"""Adapters: a row that names one makes that adapter's tokens, and no other row does.

Sessions are opened with the golden adapters of the suite.
"""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.calls import Prefill
from tgi_conformance.clause import clause
from tgi_conformance.clauses.chunked_prefill import finish
from tgi_conformance.golden import Case, Golden, adapted_golden
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import PLAIN, Stage
from tgi_conformance.session_setup import Setup
from tgi_conformance.target import prefix_plan, small_plan
from tgi_conformance.verdict import DoesNotApply, Level, NotReached, Violation
from tgi_core.backend import Feature, OutputOptions, Request, Unsupported


def adapted_transcripts(scene: Scene) -> Golden:
    """Return the transcripts of the golden checkpoint that has adapters."""
    return Golden.load(adapted_golden(scene.target.device_kind))


def open_adapted(scene: Scene, dtype: str | None = None) -> Stage:
    """Open a session with all adapters of the golden checkpoint, judged by its transcripts. Raises Unsupported, Violation."""
    golden = adapted_transcripts(scene)
    stage = Stage(scene.play(Setup(golden=golden.name, dtype=dtype, adapters=True)), scene.seed)
    given, found = tuple(adapter.name for adapter in golden.adapters), stage.capabilities.adapters
    if found != given:
        raise Violation("lora", f"it was opened with the adapters {given} and declares {found}")
    return stage


def _stage(scene: Scene) -> Stage:
    """Do the same in the run's dtype, where refusing to open is a violation."""
    try:
        return open_adapted(scene)
    except Unsupported as error:
        raise Violation("lora", f"lora is declared, and opening with adapters raised Unsupported: {error}") from error


def _greedy(scene: Scene, prompt: int) -> list[Case]:
    """Return one prompt's greedy cases: the base model's, then each adapter's. `prompt` is the prompt's index."""
    cases = [case for case in adapted_transcripts(scene).cases if case.id.startswith(("greedy", "adapted-greedy"))]
    prompts = list(dict.fromkeys(case.prompt for case in cases))
    return [case for case in cases if case.prompt == prompts[prompt]]


def case_request(stage: Stage, case: Case, take: int | None = None, want: OutputOptions = PLAIN, done: int = 0) -> Request:
    """Build a case's request, or the one that continues it after `done` of its tokens."""
    tokens = (*case.prompt, *case.tokens[:done])
    return stage.request(tokens, case.sampling, take, want=want, adapter=case.adapter, prompt_len=len(case.prompt))


@clause(
    "lora.names",
    "A session opened with adapters declares lora and their names; one opened without adapters names none.",
    Level.L2,
    needs=("lora",),
)
def names(scene: Scene) -> None:
    """With and without adapters; the names keep the order in which they were given."""
    stage = _stage(scene)
    if not stage.has(Feature.LORA):
        raise Violation("lora", f"it was opened with the adapters {stage.capabilities.adapters} and does not declare lora")
    if scene.declared[0].adapters:
        raise Violation("lora", f"it was opened without adapters and declares {scene.declared[0].adapters}")


@clause(
    "lora.refusal",
    "An adapter that is not loaded is refused as Unsupported, and none of the request's batch mates is admitted.",
    Level.L2,
    needs=("lora",),
    rows=2,
)
def refusal(scene: Scene) -> None:
    """Near misses among the names, then a session without any adapters."""
    stage = _stage(scene)
    plain, adapted = _greedy(scene, 0)[:2]
    mate = case_request(stage, plain)
    wrong = replace(case_request(stage, adapted), adapter=None)
    for name in ("fourth", "", "First", "first ", "../first", "first\0"):
        stage.refuse(Unsupported, Prefill((mate, replace(wrong, adapter=name))))
    stage.decode(stage.start(mate, replace(wrong, adapter="first")), steps=3)
    bare = scene.stage()
    bare.refuse(Unsupported, Prefill((replace(bare.request(bare.prompts[0]), adapter="first"),)))


@clause(
    "lora.tokens",
    "A row that names an adapter generates the tokens of that adapter's golden transcript.",
    Level.L2,
    needs=("lora",),
)
def tokens(scene: Scene) -> None:
    """Every prompt and adapter, one row at a time: greedy, and sampled where the formula is declared."""
    stage = _stage(scene)
    wanted = ("adapted-greedy", "adapted-sampled")[: 1 + (stage.capabilities.determinism.value == "core")]
    for case in adapted_transcripts(scene).cases:
        if case.id.startswith(wanted):
            stage.filter(stage.decode(stage.start(case_request(stage, case, want=stage.wants)), steps=4), ())


@clause(
    "lora.mates",
    "Rows with different adapters and with none share steps, and each generates its own tokens.",
    Level.L2,
    needs=("lora",),
    situations=("several rows share a step", "batches merge", "a row leaves"),
    rows=2,
)
def mates(scene: Scene) -> None:
    """In both orders; merged with another batch; then the first row leaves."""
    for order in (1, -1):
        stage = _stage(scene)
        room = stage.capacity.max_rows // 2
        first = [case_request(stage, case) for case in _greedy(scene, 0)[::order][:room]]
        second = [case_request(stage, case) for case in _greedy(scene, 2)[::-order][:room]]
        batch = stage.decode(stage.start(*first), steps=2)
        batch = stage.decode(stage.start(*second), batch, steps=3)
        stage.decode(stage.filter(batch, [request.id for request in (*first[1:], *second)]), steps=2)


@clause(
    "lora.same-prompt",
    "Rows with the same prompt and different adapters never share cached values, at the same time or one after the other.",
    Level.L2,
    needs=("lora",),
    rows=3,
)
def same_prompt(scene: Scene) -> None:
    """Each row in turn on the blocks the previous one left, twice; then one batch each, side by side."""
    stage = _stage(scene)
    cases = _greedy(scene, 1)
    for case in (*cases, *cases[::-1]):
        stage.filter(stage.decode(stage.start(case_request(stage, case)), steps=2), ())
    batches = [stage.start(case_request(stage, case)) for case in cases[: stage.capacity.max_rows]]
    for batch in batches:
        stage.decode(batch, steps=2)


@clause(
    "lora.prefix",
    "A request behind a prefix that its own adapter filled goes on under that adapter.",
    Level.L2,
    needs=("lora", "prefix_reuse"),
    situations=("a prefix is reused",),
    rows=2,
)
def prefix(scene: Scene) -> None:
    """A one-block prefix, for the base model and for each adapter."""
    sizes, cases = scene.declared[0].block_sizes, _greedy(scene, 1)
    if (small_plan(sizes).block_size or 0) < len(cases[0].prompt):
        stage = _stage(scene)
    else:  # longer prompts, of which there are no transcripts
        setup = Setup(prefix_plan(sizes), golden=adapted_transcripts(scene).name, adapters=True, alone=True)
        stage = Stage(scene.play(setup), scene.seed)
    size = stage.capacity.groups[0].block_size
    for case in cases:
        prompt = case.prompt * (size // len(case.prompt) + 1)
        if len(prompt) + 3 > min(stage.capacity.max_row_tokens, stage.capacity.max_step_tokens):
            raise NotReached(f"a prefix of one {size}-token block does not fit a row of {stage.capacity.max_row_tokens} tokens")
        owner = stage.request(prompt, adapter=case.adapter)
        stage.start(owner)
        sharer = stage.request(prompt, cached=size, shares=owner, adapter=case.adapter)
        stage.decode(stage.start(sharer), steps=3)
        stage.clear(None)


@clause(
    "lora.chunks",
    "A prompt in chunks runs under its adapter in every chunk.",
    Level.L2,
    needs=("lora", "chunked_prefill"),
    situations=("a prompt goes on",),
)
def chunks(scene: Scene) -> None:
    """In chunks of three and of seven tokens."""
    for chunk in (3, 7):
        stage = _stage(scene)
        if stage.capabilities.whole_prompts:
            raise DoesNotApply("its prompts run whole")
        for case in _greedy(scene, 1):
            request = case_request(stage, case, take=chunk)
            stage.filter(stage.decode(finish(stage, stage.start(request), request.id, chunk), steps=2), ())
