"""Tiny checkpoints make the tokens, logprobs and top tokens of their golden transcripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tgi_conformance.clause import clause
from tgi_conformance.golden import Case, Golden, default_model, names
from tgi_conformance.masks import ALTERNATING
from tgi_conformance.rules import needs_of
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import PLAIN, Stage
from tgi_conformance.session_setup import Setup
from tgi_conformance.verdict import Level, NotReached, Violation
from tgi_core.backend import InvalidModel, OutputOptions, Request, Unsupported, WarmupPlan


def golden_stages(
    scene: Scene, dtype: str | None = None, masks: str | None = None, plan: WarmupPlan | None = None
) -> Iterator[tuple[Golden, Stage]]:
    """Yield each golden checkpoint with a session on it, skipping those whose architecture the backend refuses.

    Raises InvalidModel if the default checkpoint, or every checkpoint, is refused.
    """
    refused: InvalidModel | None = None
    opened = 0
    for name in names(scene.target.device_kind):
        try:
            play = scene.play(Setup(plan, masks, name, dtype))
        except InvalidModel as error:
            if Golden.load(name).model == default_model(scene.target.device_kind):
                raise
            scene.situations[f"golden {name} refused"] += 1
            refused = error
            continue
        opened += 1
        yield Golden.load(name), Stage(play)
    if refused is not None and not opened:
        raise refused


def _greedy(case: Case) -> bool:
    return case.id.startswith("greedy")


def sampled_as_declared(stage: Stage, case: Case) -> bool:
    """Return whether everything that a case's sampling uses is declared."""
    declared = {item.value for item in (*stage.capabilities.features, *stage.capabilities.sampling)}
    return declared.issuperset(needs_of(Request(1, case.prompt, len(case.prompt), 0, (), len(case.prompt), case.sampling, PLAIN)))


def _run(stage: Stage, cases: list[Case], want: OutputOptions) -> None:
    """Generate all tokens of the cases, as many cases at a time as fit."""
    room = min(stage.capacity.max_rows, 4)
    for first in range(0, len(cases), room):
        batch = stage.start(
            *(stage.request(case.prompt, case.sampling, want=want, masked=case.masked) for case in cases[first : first + room])
        )
        stage.filter(stage.decode(batch, steps=len(cases[first].tokens) - 1), ())


def _compare_masked(scene: Scene) -> None:
    for golden, stage in golden_stages(scene, masks=ALTERNATING):
        cases = [case for case in golden.cases if case.masked and sampled_as_declared(stage, case)]
        scene.situations["golden cases compared"] += len(cases)
        _run(stage, cases, stage.wants)


def _compare(scene: Scene, chosen: Callable[[Case], bool], want: Callable[[Stage], OutputOptions]) -> None:
    compared = 0
    for golden, stage in golden_stages(scene):
        cases = [case for case in golden.cases if chosen(case) and sampled_as_declared(stage, case)]
        _run(stage, cases, want(stage))
        compared += len(cases)
    if not compared:
        raise NotReached("no golden case fits the declared capabilities")
    scene.situations["golden cases compared"] += compared


def _plain(stage: Stage) -> OutputOptions:
    return PLAIN


def _everything(stage: Stage) -> OutputOptions:
    return stage.wants


@clause("parity.greedy", "Greedy tokens match the golden transcripts.", Level.L2, essential=True)
def greedy(scene: Scene) -> None:
    """Prompts of 1 to 18 tokens, across block boundaries and a sliding window."""
    _compare(scene, _greedy, _plain)


@clause("parity.one-by-one", "Greedy tokens match the golden transcripts when a prompt runs alone.", Level.L2)
def one_by_one(scene: Scene) -> None:
    """Each greedy case in separate steps."""
    for golden, stage in golden_stages(scene):
        for case in filter(_greedy, golden.cases):
            _run(stage, [case], PLAIN)


@clause("parity.logprobs", "Token logprobs match the golden transcripts.", Level.L2, needs=("logprobs",))
def logprobs(scene: Scene) -> None:
    """Of greedy rows."""
    _compare(scene, _greedy, lambda stage: OutputOptions(True))


@clause(
    "parity.top",
    "The most likely tokens and their logprobs match the golden transcripts.",
    Level.L2,
    needs=("top_n", "logprobs"),
)
def top(scene: Scene) -> None:
    """The top four."""
    _compare(scene, _greedy, lambda stage: OutputOptions(True, 4))


@clause("parity.prompt", "Prompt logprobs match the golden transcripts.", Level.L2, needs=("prompt_logprobs",))
def prompt(scene: Scene) -> None:
    """Together with rows that ask for none."""
    _compare(scene, _greedy, lambda stage: OutputOptions(False, 0, True))


@clause("parity.sampled", "Sampled tokens and logprobs match the published formula.", Level.L2, needs=("formula",))
def sampled(scene: Scene) -> None:
    """Temperature, top-k, top-p and typical-p."""
    ways = ("temperature", "cool", "top-k", "top-p", "top-k-top-p", "typical")
    _compare(scene, lambda case: case.id.startswith(ways), _everything)


@clause(
    "parity.repetition",
    "The repetition penalty divides positive logits and multiplies negative ones.",
    Level.L2,
    needs=("formula", "repetition_penalty"),
)
def repetition(scene: Scene) -> None:
    """Greedy and sampled; it also counts the prompt's tokens."""
    _compare(scene, lambda case: case.id.startswith("repetition"), _everything)


@clause(
    "parity.counts", "Frequency and presence penalties and logit bias lead to the golden tokens.", Level.L2, needs=("formula",)
)
def counts(scene: Scene) -> None:
    """As far as they are declared."""
    _compare(scene, lambda case: case.id.startswith(("frequency", "presence", "counts", "bias")), _everything)


@clause(
    "parity.masked",
    "Masked rows generate the golden tokens: the mask applies before temperature and filters, and logprobs are renormalized "
    "under it.",
    Level.L2,
    needs=("formula", "masks"),
    situations=("golden cases compared",),
)
def masked(scene: Scene) -> None:
    """Greedy, sampled, and combined with a penalty and filters."""
    _compare_masked(scene)


@clause(
    "parity.end-of-text",
    "A row continues past the model's end-of-text token: stopping is not the backend's job.",
    Level.L2,
    situations=("end of text passed",),
)
def end_of_text(scene: Scene) -> None:
    """The greedy case whose third token is the end of text."""
    for golden, stage in golden_stages(scene):
        for case in golden.cases:
            if _greedy(case) and golden.eos in case.tokens[:-1]:
                _run(stage, [case], PLAIN)
                scene.situations["end of text passed"] += 1


@clause(
    "parity.other-dtypes",
    "In other dtypes, logprobs stay within the declared tolerance, and tokens differ only where rounding decides.",
    Level.L2,
)
def other_dtypes(scene: Scene) -> None:
    """bfloat16 and float16, where the backend opens them; it refuses other dtypes as Unsupported."""
    for dtype in ("bfloat16", "float16"):
        try:
            for golden, stage in golden_stages(scene, dtype):
                _run(stage, [case for case in golden.cases if _greedy(case)], stage.wants)
        except Unsupported:
            scene.situations[f"{dtype} refused"] += 1
        except InvalidModel as error:
            raise Violation("dtype", f"{dtype}: {error}") from error
